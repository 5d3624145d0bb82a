#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace optim {

// A result that a device may still be computing; get() waits for it.
template <class T>
class Deferred {
 public:
  explicit Deferred(T value) : read_([value] { return value; }) {}
  explicit Deferred(std::function<T()> read) : read_(std::move(read)) {}
  T get() const { return read_(); }

 private:
  std::function<T()> read_;
};

struct StepResult {
  bool update_successful = false;  // false: an overflow; nothing moved, no step was counted
  std::optional<Deferred<double>> grad_norm = {};           // before clipping
  std::optional<Deferred<int64_t>> num_zeros_in_grad = {};  // after clipping; if the config asks
};

}  // namespace optim
