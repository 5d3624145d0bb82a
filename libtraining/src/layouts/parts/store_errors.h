#pragma once

#include <string>
#include <utility>

#include <ckpt/error.h>

// Errors of keys of a torch_dist folder.
namespace optim::store_errors {

[[noreturn]] inline void corrupt(const std::string& key, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {".metadata", std::nullopt, key}, std::move(problem));
}

[[noreturn]] inline void unsupported(const std::string& key, std::string problem,
                                     std::string hint = {}) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {".metadata", std::nullopt, key},
                    std::move(problem), std::move(hint));
}

}  // namespace optim::store_errors
