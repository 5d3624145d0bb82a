// How the functions of this room refuse sizes and shapes that cannot be.
#pragma once
#include <ckpt/error.h>

#include <string>
#include <utility>

namespace optim {

// Throws ckpt::Error (InvalidArgument), which names no file: the caller has read none.
[[noreturn]] inline void refuse(std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}}, std::move(problem));
}

}  // namespace optim
