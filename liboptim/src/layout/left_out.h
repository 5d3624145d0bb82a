#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <optim/verify.h>

namespace optim {

// Tensors that a check leaves out, told in one line for each reason.
class LeftOut {
 public:
  explicit LeftOut(std::string things) : things_(std::move(things)) {}

  void add(std::string_view key, std::string_view reason) {
    for (Reason& known : reasons_) {
      if (known.text == reason) return void(++known.count);
    }
    reasons_.push_back({std::string(reason), std::string(key), 1});
  }

  bool empty() const { return reasons_.empty(); }

  // "3 masters, the first is 'KEY'": the reason.
  void put_into(std::vector<NotChecked>& list) const {
    for (const Reason& reason : reasons_) {
      list.push_back({std::to_string(reason.count) + " " + things_ + ", the first is '" +
                          ckpt::escaped(reason.first) + "'",
                      reason.text});
    }
  }

 private:
  struct Reason {
    std::string text, first;
    uint64_t count;
  };
  std::string things_;  // "masters"
  std::vector<Reason> reasons_;
};

}  // namespace optim
