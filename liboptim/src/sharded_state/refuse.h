// How the functions of this room refuse a key of a sharded state.
#pragma once
#include <ckpt/error.h>

#include <string>
#include <string_view>
#include <utility>

namespace optim {

// Throws ckpt::Error (InvalidArgument) with the key; no file is known here.
[[noreturn]] inline void refuse(std::string_view key, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = std::string(key)},
                    std::move(problem));
}

}  // namespace optim
