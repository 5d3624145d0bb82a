#include "step/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstring>

namespace optim {

void throw_c10d_error(const char* operation, const std::exception& error) {
  const std::string text = error.what();
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {},
                    std::string(operation) + " failed: " + text.substr(0, text.find('\n')));
}

Collectives::Collectives(const ProcessGroupPtr& group) : group_(group), rank_(rank_in(group)) {}
Collectives::Collectives(Collectives&&) noexcept = default;
Collectives::~Collectives() = default;

template <class Body>
void Collectives::run(const char* operation, Body&& body) {
  if (!failure_.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::IoFailure, {},
                      "an earlier collective operation failed, ranks no longer agree: " + failure_);
  }
  if (!group_) return;
  try {
    translate_c10d_errors(operation, body);
  } catch (const ckpt::Error& error) {
    failure_ = error.what();
    throw;
  }
}

void Collectives::all_reduce_sum(at::Tensor& tensor) {
  run("all-reduce", [&] {
    std::vector<at::Tensor> tensors = {tensor};
    group_->allreduce(tensors)->wait();
  });
}

void Collectives::all_gather(at::Tensor& all, at::Tensor& mine) {
  if (!group_) all.copy_(mine);
  run("all-gather", [&] { group_->_allgather_base(all, mine)->wait(); });
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

void Collectives::broadcast(at::Tensor& tensor, int root) {
  run("broadcast", [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group_->broadcast(tensors, options)->wait();
  });
}

}  // namespace optim
