#pragma once

#include <optional>
#include <type_traits>

#include <ckpt/error.h>

namespace optim {

// What `read` returns; nullopt where it cannot be read for damage, which is a finding of whoever
// reads all of it. Of a `read` without a result whether it could. Failures of I/O are thrown.
template <class Read>
auto unless_damaged(Read&& read) {
  constexpr bool kHasResult = !std::is_void_v<std::invoke_result_t<Read>>;
  try {
    if constexpr (kHasResult) {
      return std::optional(read());
    } else {
      read();
      return true;
    }
  } catch (const ckpt::Error& error) {
    if (error.code() == ckpt::ErrorCode::IoFailure) throw;
    if constexpr (kHasResult) {
      return std::optional<std::invoke_result_t<Read>>();
    } else {
      return false;
    }
  }
}

}  // namespace optim
