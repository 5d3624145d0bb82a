#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <training/verify.h>

namespace optim {

// What is left out of a checkpoint's structure, as NotChecked::what.
inline constexpr const char* kOwners = "which rank owns which parameter";
inline constexpr const char* kRankFiles = "which rank files have to be there";

// "1 tensor", "3 tensors".
inline std::string counted(uint64_t count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

// Tensors that a check leaves out, told in one line for each reason.
class LeftOut {
 public:
  explicit LeftOut(std::string thing) : thing_(std::move(thing)) {}

  void add(std::string_view key, std::string_view reason) {
    for (Reason& known : reasons_) {
      if (known.text == reason) return void(++known.count);
    }
    reasons_.push_back({std::string(reason), std::string(key), 1});
  }

  bool empty() const { return reasons_.empty(); }

  // "3 masters, the first is 'KEY'", or "master 'KEY'", and the reason.
  void put_into(std::vector<NotChecked>& list) const {
    for (const Reason& reason : reasons_) {
      const std::string which =
          reason.count == 1 ? thing_ : counted(reason.count, thing_) + ", the first is";
      list.push_back({which + " '" + ckpt::escaped(reason.first) + "'", reason.text});
    }
  }

 private:
  struct Reason {
    std::string text, first;
    uint64_t count;
  };
  std::string thing_;  // "master"
  std::vector<Reason> reasons_;
};

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
