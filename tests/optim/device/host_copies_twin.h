#pragma once

#include <kernels/device_step.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace optim {

// Copies between a GPU and the host where both are the host's memory. Each is made as late as the
// interface allows: who reads before he waits reads what was there before.
class CopiesTwin final : public kernels::HostCopies {
 public:
  using Status = kernels::DeviceStatus;
  using Stream = kernels::DeviceStream;
  static constexpr Status kRefused = 2;  // cudaErrorMemoryAllocation
  // Of the calling thread: the call with this number, counted from 0, fails and does nothing.
  static inline thread_local int64_t fault = -1;
  static inline thread_local int64_t calls = 0;
  static inline thread_local std::vector<std::string> log;  // of this thread's calls
  static inline std::atomic<int> pinned = 0;                // pieces of memory

  static bool fails(std::string name) {
    log.push_back(std::move(name));
    return calls++ == fault;
  }
  static void forget_calls(int64_t next_fault = -1) {
    fault = next_fault;
    calls = 0;
    log.clear();
  }

  ~CopiesTwin() override {
    run(down_, std::numeric_limits<uint32_t>::max());
    run(up_, std::numeric_limits<uint32_t>::max());
  }
  Status follow(Stream) override { return fails("follow") ? kRefused : 0; }
  Status to_host(void* host, const void* device, uint64_t bytes) override {
    if (fails("to_host")) return kRefused;
    down_.push_back({[=] { std::memcpy(host, device, bytes); }, false, 0});
    return 0;
  }
  Status mark(uint32_t number) override {
    if (fails("mark")) return kRefused;
    down_.push_back({[] {}, true, number});
    return 0;
  }
  Status wait(uint32_t number) override {
    if (fails("wait")) return kRefused;
    run(down_, number);
    return 0;
  }
  Status to_device(void* device, const void* host, uint64_t bytes) override {
    if (fails("to_device")) return kRefused;
    up_.push_back({[=] { std::memcpy(device, host, bytes); }, false, 0});
    return 0;
  }
  Status join(Stream) override {
    if (fails("join")) return kRefused;
    run(up_, std::numeric_limits<uint32_t>::max());
    return 0;
  }

 private:
  struct Copy {
    std::function<void()> run;
    bool is_mark;
    uint32_t number;
  };
  // To the mark; one that is not there was reached before.
  static void run(std::deque<Copy>& copies, uint32_t mark) {
    const auto is_it = [&](const Copy& copy) { return copy.is_mark && copy.number == mark; };
    const bool is_queued = std::any_of(copies.begin(), copies.end(), is_it);
    if (!is_queued && mark != std::numeric_limits<uint32_t>::max()) return;
    while (!copies.empty()) {
      const Copy next = std::move(copies.front());
      copies.pop_front();
      next.run();
      if (is_it(next)) return;
    }
  }

  std::deque<Copy> down_, up_;
};

inline std::unique_ptr<kernels::HostCopies> make_copies_twin(bool, kernels::DeviceStatus& status) {
  status = CopiesTwin::fails("make") ? CopiesTwin::kRefused : 0;
  if (status != 0) return nullptr;
  return std::make_unique<CopiesTwin>();
}

inline kernels::DeviceStatus pin_twin(void* memory, uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  if (CopiesTwin::fails("pin")) return CopiesTwin::kRefused;
  if (reinterpret_cast<uintptr_t>(memory) % kPage != 0 || bytes % kPage != 0) return 1;
  ++CopiesTwin::pinned;
  return 0;
}
inline kernels::DeviceStatus unpin_twin(void*) {
  --CopiesTwin::pinned;
  return 0;
}

}  // namespace optim
