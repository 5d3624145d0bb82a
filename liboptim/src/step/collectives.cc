#include "step/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace optim {
namespace {

// LibTorch 2.11 notes each of Gloo's operations in one map of the process without a lock
// (c10d::FlightRecorder), which groups in several threads would corrupt. NCCL's are left alone:
// its first operation waits for the other ranks, which may be threads of this process.
template <class Body>
c10::intrusive_ptr<c10d::Work> enqueue(const at::Tensor& tensor, Body&& body) {
  static std::mutex one_at_a_time;
  std::unique_lock lock(one_at_a_time, std::defer_lock);
  if (tensor.is_cpu()) lock.lock();
  return body();
}

}  // namespace

void throw_c10d_error(const char* operation, const std::exception& error) {
  const std::string text = error.what();
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {},
                    std::string(operation) + " failed: " + text.substr(0, text.find('\n')));
}

Collectives::Collectives(const ProcessGroupPtr& group) : group_(group), rank_(rank_in(group)) {}
Collectives::Collectives(Collectives&&) noexcept = default;
Collectives::~Collectives() = default;

void Collectives::check_usable() const {
  if (failure_->empty()) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {},
                    "an earlier collective operation failed, ranks no longer agree: " + *failure_);
}

template <class Body>
void Collectives::run(const char* operation, Body&& body) {
  check_usable();
  if (!group_) return;
  try {
    translate_c10d_errors(operation, body);
  } catch (const ckpt::Error& error) {
    *failure_ = error.what();
    throw;
  }
}

template <class Body>
Collectives::Wait Collectives::start(const char* operation, const at::Tensor& tensor, Body&& body) {
  c10::intrusive_ptr<c10d::Work> work;
  run(operation, [&] { work = enqueue(tensor, body); });
  if (!work) return [] {};
  return [this, operation, work] { run(operation, [&] { work->wait(); }); };
}

void Collectives::all_reduce(at::Tensor& tensor, bool is_max) {
  start("all-reduce", tensor, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    return group_->allreduce(tensors, options);
  })();
}

void Collectives::all_reduce_sum(at::Tensor& tensor) { all_reduce(tensor, /*is_max=*/false); }
void Collectives::all_reduce_max(at::Tensor& tensor) { all_reduce(tensor, /*is_max=*/true); }

Collectives::Wait Collectives::start_all_gather(at::Tensor all, at::Tensor mine) {
  if (!group_) all.copy_(mine);
  return start("all-gather", mine, [&] { return group_->_allgather_base(all, mine); });
}

void Collectives::all_gather(at::Tensor& all, at::Tensor& mine) { start_all_gather(all, mine)(); }

Collectives::Wait Collectives::start_broadcast(at::Tensor tensor, int root) {
  return start("broadcast", tensor, [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group_->broadcast(tensors, options);
  });
}

// Two rounds: the sizes, then the texts padded to the longest.
std::vector<std::string> Collectives::all_gather(const std::string& mine) {
  at::Tensor sizes = at::zeros({size()}, at::kLong);
  sizes.data_ptr<int64_t>()[rank()] = static_cast<int64_t>(mine.size());
  all_reduce_sum(sizes);
  const int64_t* const counts = sizes.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(1, *std::max_element(counts, counts + size()));
  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr<uint8_t>(), mine.data(), mine.size());
  at::Tensor all = at::empty({longest * size()}, at::kByte);
  all_gather(all, padded);
  const auto* const bytes = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    texts.emplace_back(bytes + r * longest, static_cast<size_t>(counts[r]));
  }
  return texts;
}

void Collectives::broadcast(at::Tensor& tensor, int root) { start_broadcast(tensor, root)(); }

}  // namespace optim
