// How functions refuse sizes and shapes that cannot be.
#pragma once
#include <ckpt/error.h>

#include <string>
#include <string_view>
#include <utility>

namespace optim {

// Throws ckpt::Error (InvalidArgument), which names no file: the caller has read none.
[[noreturn]] inline void refuse(std::string problem, std::string hint = {}) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}}, std::move(problem),
                    std::move(hint));
}

// The same of sizes that an argument of the run makes: "num_layers". Options may ask for the other
// one, so that who knows these says it in their words.
[[noreturn]] inline void refuse_arg_of_run(std::string_view name, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument,
                    {.file = {}, .key = "args." + std::string(name)}, std::move(problem));
}

}  // namespace optim
