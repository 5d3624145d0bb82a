#include "step/communication/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>
#include <variant>

#include <optim/matrix_split.h>

#include "rules/refuse_key.h"

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

// None for groups that do not say, of other classes than c10d's own.
std::optional<std::vector<at::DeviceType>> devices_of(const ProcessGroupPtr& group) {
  std::vector<at::DeviceType> types;
  if (!group || !group->hasBackends()) return {};
  for (const at::Device& device : group->getDeviceTypes()) types.push_back(device.type());
  return types;
}

c10::intrusive_ptr<c10d::Work> broadcast_of(c10d::ProcessGroup& group, const at::Tensor& tensor,
                                            int root) {
  std::vector<at::Tensor> tensors = {tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return group.broadcast(tensors, options);
}

// What waits for `wait`, then brings back what travelled in another tensor's place.
Collectives::Wait then_bring_back(Collectives::Wait wait, at::Tensor tensor, at::Tensor there) {
  if (there.is_same(tensor)) return wait;
  return [wait = std::move(wait), tensor = std::move(tensor), there = std::move(there)] {
    wait();
    tensor.copy_(there);
  };
}

using nlohmann::json;

// Numbers travel as their bits: 0.1 must be the same key everywhere.
json to_json(const OverrideValue& value) {
  json content;
  if (const auto* real = std::get_if<double>(&value)) {
    content = std::bit_cast<int64_t>(*real);
  } else {
    std::visit([&](const auto& v) { content = v; }, value);
  }
  return {value.index(), std::move(content)};
}

OverrideValue value_of(const json& text) {
  const json& content = text.at(1);
  switch (text.at(0).get<size_t>()) {
    case 0: return content.get<bool>();
    case 1: return content.get<int64_t>();
    case 2: return std::bit_cast<double>(content.get<int64_t>());
    default: return content.get<std::string>();
  }
}

std::string text_of(const std::vector<GroupKey>& keys) {
  json all = json::array();
  for (const GroupKey& key : keys) {
    json overrides;  // null: no key matched
    if (key.overrides) overrides = json::object();
    for (const auto& [field, value] : key.overrides.value_or(ParamGroupOverride())) {
      overrides[field] = to_json(value);
    }
    all.push_back({{"expert", key.is_expert_parallel}, {"overrides", std::move(overrides)}});
  }
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<GroupKey> keys_of(const std::string& text) {
  std::vector<GroupKey> keys;
  for (const json& entry : json::parse(text)) {
    GroupKey key = {.is_expert_parallel = entry.at("expert").get<bool>()};
    const json& overrides = entry.at("overrides");
    if (!overrides.is_null()) key.overrides.emplace();
    for (const auto& [field, value] : overrides.items()) {
      key.overrides->emplace(field, value_of(value));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

class GroupRanks final : public MatrixRanks {
 public:
  GroupRanks(const ProcessGroupPtr& group, const Collectives* other) : collectives_(group) {
    if (other != nullptr) collectives_.share_failures_with(*other);
  }

  int rank() const override { return collectives_.rank(); }

  // As bytes, which every backend carries; the shorter ones with padding.
  std::vector<at::Tensor> all_gather(const at::Tensor& mine,
                                     std::span<const int64_t> counts) override {
    const int64_t longest = *std::ranges::max_element(counts);
    at::Tensor padded = mine.view({-1});
    if (padded.numel() < longest) {
      padded = at::zeros({longest}, mine.options());
      padded.narrow(0, 0, mine.numel()).copy_(mine.view({-1}));
    }
    const at::Tensor all = at::zeros({collectives_.size() * longest}, mine.options());
    at::Tensor all_bytes = all.view(at::kByte), mine_bytes = padded.view(at::kByte);
    collectives_.all_gather(all_bytes, mine_bytes);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < collectives_.size(); ++rank) {
      parts.push_back(all.narrow(0, rank * longest, counts[static_cast<size_t>(rank)]));
    }
    return parts;
  }

 private:
  Collectives collectives_;
};

}  // namespace

void throw_c10d_error(const char* operation, const std::exception& error) {
  const std::string text = error.what();
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {},
                    std::string(operation) + " failed: " + text.substr(0, text.find('\n')));
}

Collectives::Collectives(const ProcessGroupPtr& group) : Collectives(group, devices_of(group)) {}
Collectives::Collectives(const ProcessGroupPtr& group,
                         std::optional<std::vector<at::DeviceType>> devices)
    : group_(group), rank_(rank_in(group)), devices_(std::move(devices)) {}
Collectives::Collectives(Collectives&&) noexcept = default;
Collectives::~Collectives() = default;

void Collectives::check_usable() const {
  if (failure_->empty()) return;
  throw ckpt::Error(
      ckpt::ErrorCode::IoFailure, {},
      "an earlier collective operation failed, so ranks no longer agree: " + *failure_);
}

bool Collectives::takes(at::DeviceType type) const {
  return !devices_ || std::ranges::find(*devices_, type) != devices_->end();
}

// The tensor itself, or where its device has no backend a copy on the CPU, else on the current GPU.
at::Tensor Collectives::travelling(const at::Tensor& tensor) const {
  if (takes(tensor.device().type())) return tensor;
  const at::Device device = takes(at::kCPU) || devices_->empty() ? at::kCPU : devices_->front();
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
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
  const at::Tensor there = travelling(tensor);
  start("all-reduce", there, [&] {
    std::vector<at::Tensor> tensors = {there};
    c10d::AllreduceOptions options;
    options.reduceOp = is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    return group_->allreduce(tensors, options);
  })();
  if (!there.is_same(tensor)) tensor.copy_(there);
}

void Collectives::all_reduce_sum(at::Tensor& tensor) { all_reduce(tensor, /*is_max=*/false); }
void Collectives::all_reduce_max(at::Tensor& tensor) { all_reduce(tensor, /*is_max=*/true); }

Collectives::Wait Collectives::start_all_gather(at::Tensor all, at::Tensor mine) {
  if (!group_) all.copy_(mine);
  at::Tensor all_there = travelling(all), mine_there = travelling(mine);
  Wait wait = start("all-gather", mine_there,
                    [&] { return group_->_allgather_base(all_there, mine_there); });
  return then_bring_back(std::move(wait), std::move(all), std::move(all_there));
}

void Collectives::all_gather(at::Tensor& all, at::Tensor& mine) { start_all_gather(all, mine)(); }

void Collectives::all_to_all(at::Tensor& received, at::Tensor& sent) {
  if (!group_) received.copy_(sent);
  at::Tensor received_there = travelling(received), sent_there = travelling(sent);
  start("all-to-all", sent_there, [&] {
    std::vector<int64_t> equal;  // parts
    return group_->alltoall_base(received_there, sent_there, equal, equal);
  })();
  if (!received_there.is_same(received)) received.copy_(received_there);
}

Collectives::Wait Collectives::start_broadcast(at::Tensor tensor, int root) {
  at::Tensor there = travelling(tensor);
  Wait wait = start("broadcast", there, [&] { return broadcast_of(*group_, there, root); });
  return then_bring_back(std::move(wait), std::move(tensor), std::move(there));
}

bool Collectives::can_group(at::DeviceType type) const {
  const std::vector<at::DeviceType> types =
      devices_of(group_).value_or(std::vector<at::DeviceType>());
  return std::ranges::find(types, type) != types.end() &&
         group_->getBackend(type)->supportsCoalescing();
}

Collectives::Wait Collectives::start_broadcasts(const std::vector<Broadcast>& all) {
  std::vector<Wait> waits;
  if (all.empty()) return [] {};
  const at::Device device = all.front().tensor.device();
  if (all.size() == 1 || !can_group(device.type())) {
    for (const Broadcast& one : all) waits.push_back(start_broadcast(one.tensor, one.root));
    return [waits = std::move(waits)] {
      for (const Wait& wait : waits) wait();
    };
  }
  return start("broadcasts", all.front().tensor, [&] {
    group_->startCoalescing(device.type());
    for (const Broadcast& one : all) broadcast_of(*group_, one.tensor, one.root);
    return group_->endCoalescing(device.type());
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

int64_t sum_of(int64_t mine, Collectives& collectives) {
  at::Tensor value = at::full({1}, mine, at::kLong);
  collectives.all_reduce_sum(value);
  return *value.const_data_ptr<int64_t>();
}

int64_t max_of(int64_t mine, Collectives& collectives) {
  at::Tensor value = at::full({1}, mine, at::kLong);
  collectives.all_reduce_max(value);
  return *value.const_data_ptr<int64_t>();
}

std::vector<GroupKey> gather_group_keys(const ProcessGroupPtr& world,
                                        const std::vector<GroupKey>& mine) {
  std::vector<GroupKey> all;
  for (const std::string& text : all_gather(world, text_of(mine))) {
    try {
      for (GroupKey& key : keys_of(text)) all.push_back(std::move(key));
    } catch (const json::exception&) {
      refuse_key("world", "a rank sent group keys unknown to this version");
    }
  }
  return all;
}

MatrixRanks::~MatrixRanks() = default;

std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group) {
  return std::make_shared<GroupRanks>(group, nullptr);
}

std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group,
                                               const Collectives& other) {
  return std::make_shared<GroupRanks>(group, &other);
}

}  // namespace optim
