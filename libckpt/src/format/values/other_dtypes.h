// Element types of PyTorch that are not read.
#pragma once

#include <string>
#include <string_view>

#include <ckpt/error.h>
#include <ckpt/value.h>

namespace ckpt {

// Throws Unsupported where torch has an element type of this name (2.11, torch/_C/__init__.pyi).
inline void refuse_other_dtype(const Value& dtype) {
  constexpr std::string_view kNames =
      " float4_e2m1fn_x2 qint8 quint8 qint32 quint4x2 quint2x4 bits8 bits16 bits1x8 bits2x4 bits4x2"
      " int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 ";
  if (!dtype.is(Kind::Global) || dtype.module() != "torch") return;
  if (kNames.find(" " + std::string(dtype.name()) + " ") == kNames.npos) return;
  throw Error(ErrorCode::Unsupported, {},
              "the element type torch." + std::string(dtype.name()) + " is not read");
}

}  // namespace ckpt
