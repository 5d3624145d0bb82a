#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <ckpt/error.h>

namespace optim {

// Throws ckpt::Error with what is wrong: a field, a parameter, an argument, or a place in a state
// dict; empty: none of them. It names no file: the caller has read none.
[[noreturn]] inline void refuse_key(std::string_view key, std::string problem,
                                    ckpt::ErrorCode code = ckpt::ErrorCode::InvalidArgument) {
  throw ckpt::Error(code, {.file = {}, .key = std::string(key)}, std::move(problem));
}

}  // namespace optim
