#include "step/device/host_block.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <ckpt/error.h>
#include <string>
#include <utility>

namespace optim {
namespace {

constexpr uint64_t kPage = 4096;

[[noreturn]] void fail(std::string problem, std::string hint = {}) {
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = {}, .key = "optimizer_cpu_offload"},
                    std::move(problem), std::move(hint));
}

}  // namespace

HostBlock::HostBlock(uint64_t bytes, const kernels::DeviceApi* pins_with)
    : bytes_((bytes + kPage - 1) / kPage * kPage) {
  try {
    memory_ = at::empty({static_cast<int64_t>(bytes_ + kPage)}, at::kByte);
  } catch (const c10::Error&) {
    fail("out of memory: " + std::to_string(bytes_) + " bytes for what travels to the CPU");
  }
  auto* const memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
  const auto place = reinterpret_cast<uintptr_t>(memory);
  begin_ = memory + (kPage - place % kPage) % kPage;
  if (pins_with == nullptr) return;
  if (const kernels::DeviceStatus status = pins_with->pin_host(begin_, bytes_)) {
    fail(std::to_string(bytes_) +
             " bytes of host memory cannot be page-locked: " + pins_with->status_text(status),
         "pin_cpu_grads and pin_cpu_params can be false");
  }
  pinned_by_ = pins_with;
}

HostBlock::HostBlock(HostBlock&& other) noexcept { *this = std::move(other); }

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(begin_, other.begin_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_by_, other.pinned_by_);
  return *this;
}

HostBlock::~HostBlock() {
  if (pinned_by_ != nullptr) (void)pinned_by_->unpin_host(begin_);
}

}  // namespace optim
