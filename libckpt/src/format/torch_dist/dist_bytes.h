#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "codec/big_integer.h"
#include "codec/pickle_opcodes.h"

namespace ckpt {

// What lies at a place of a pickle, of which enough bytes were looked at before.

inline pickle::Op op_at(const std::byte* at) { return static_cast<pickle::Op>(*at); }
inline uint8_t byte_at(const std::byte* at) { return static_cast<uint8_t>(*at); }

template <class Number>
Number number_at(const std::byte* at) {  // pickles are little-endian, and so are we
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

// LONG1: what Python writes from 2^31 on.
inline const std::byte* read_long(const std::byte* at, int64_t& value) {
  const size_t count_bytes = byte_at(at + 1);
  const auto small = pickle::small_integer({at + 2, count_bytes});
  if (!small) return nullptr;
  value = *small;
  return at + 2 + count_bytes;
}

// BININT1, BININT2, BININT, LONG1: returns where it ends; nullptr for anything else.
inline const std::byte* read_int(const std::byte* at, int64_t& value) {
  switch (op_at(at)) {
    case pickle::Op::BinInt1: value = byte_at(at + 1); return at + 2;
    case pickle::Op::BinInt2: value = number_at<uint16_t>(at + 1); return at + 3;
    case pickle::Op::BinInt: value = number_at<int32_t>(at + 1); return at + 5;
    case pickle::Op::Long1: return read_long(at, value);
    default: return nullptr;
  }
}

// BINGET, LONG_BINGET: the same with an index of the memo.
inline const std::byte* read_get(const std::byte* at, uint64_t& index) {
  switch (op_at(at)) {
    case pickle::Op::BinGet: index = byte_at(at + 1); return at + 2;
    case pickle::Op::LongBinGet: index = number_at<uint32_t>(at + 1); return at + 5;
    default: return nullptr;
  }
}

// SHORT_BINUNICODE and MEMOIZE.
inline const std::byte* read_short_text(const std::byte* at, std::string_view& text) {
  if (op_at(at) != pickle::Op::ShortBinUnicode) return nullptr;
  text = {reinterpret_cast<const char*>(at + 2), byte_at(at + 1)};
  const std::byte* end = at + 2 + text.size();
  return op_at(end) == pickle::Op::Memoize ? end + 1 : nullptr;
}

}  // namespace ckpt
