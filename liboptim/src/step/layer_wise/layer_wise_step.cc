// What a LayerWiseDistributedOptimizer does with other processes in a step.
#include <ATen/core/grad_mode.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rules/refuse_key.h"
#include "step/communication/gather_params.h"
#include "step/layer_wise/layer_wise_sharding.h"
#include "step/optimizer/peers_and_device.h"

namespace optim {
namespace {

// The rounds in which a step on a GPU sends its parameters while it updates others: those of each
// gather in turn, dealt to a few parts of the update in that order.
// All processes of the groups make the same calls in the same order.
class ParamRounds {
 public:
  explicit ParamRounds(std::vector<std::unique_ptr<ParamGather>> gathers)
      : gathers_(std::move(gathers)) {
    for (const std::unique_ptr<ParamGather>& gather : gathers_) {
      for (int64_t round = 0; round < gather->round_count(); ++round) {
        rounds_.push_back({gather.get(), round});
      }
    }
  }

  // Ids of this process's parameters that each part must have updated before it is sent.
  std::vector<std::vector<uint32_t>> ids_of_parts() const {
    std::vector<std::vector<uint32_t>> parts(part_count());
    for (size_t part = 0; part < parts.size(); ++part) {
      for (const Round& round : rounds_of(part)) {
        const std::vector<uint32_t> ids = round.gather->needed_for(round.number);
        parts[part].insert(parts[part].end(), ids.begin(), ids.end());
      }
    }
    return parts;
  }

  void start(size_t part) {  // its rounds leave, behind what is queued
    for (const Round& round : rounds_of(part)) round.gather->start(round.number);
  }

  void finish() {  // what is queued from now on finds all parameters everywhere
    for (const std::unique_ptr<ParamGather>& gather : gathers_) gather->finish();
  }

 private:
  struct Round {
    ParamGather* gather;
    int64_t number;
  };

  // More parts would hide more of the sending, and cost launches and smaller batches of matrices.
  size_t part_count() const { return std::clamp<size_t>(rounds_.size(), 1, 4); }

  std::span<const Round> rounds_of(size_t part) const {
    const size_t begin = part * rounds_.size() / part_count();
    const size_t end = (part + 1) * rounds_.size() / part_count();
    return std::span(rounds_).subspan(begin, end - begin);
  }

  std::vector<std::unique_ptr<ParamGather>> gathers_;
  std::vector<Round> rounds_;
};

std::vector<std::unique_ptr<ParamGather>> gathers_of(LayerWiseSharding& s,
                                                     const OptimizerConfig& config) {
  const int64_t bytes = s.options.gather_bucket_bytes;
  std::vector<std::unique_ptr<ParamGather>> gathers;
  for (const GatherGroup& group : gather_groups(s, config)) {
    gathers.push_back(s.buffers.empty()
                          ? make_copying_gather(group.params, bytes, *group.collectives)
                          : s.buffers[gathers.size()].make_gather(bytes, *group.collectives));
  }
  return gathers;
}

class LayerWisePeers final : public Processes {
 public:
  LayerWisePeers(Optimizer& optimizer, LayerWiseSharding& sharding)
      : Processes(optimizer, sharding.stats, sharding.grad_count), sharding_(sharding) {}

  at::Device device() override {
    return sharding_.params.empty() ? at::kCPU : sharding_.params.front().param.device();
  }

  uint32_t stats_count() override { return static_cast<uint32_t>(sharding_.params.size()); }

  void sum_stats(at::Tensor& stats) override {
    if (!sharding_.one_cell_per_param) {
      refuse_key("device", "model and expert parallel processes are not handled on GPUs",
                 ckpt::ErrorCode::Unsupported);
    }
    sharding_.stats.all_reduce_sum(stats);  // each has one addend that is not 0: exact
  }

  void check_can_queue() override {
    if (!are_there()) return;
    const LayerWiseSharding& s = sharding_;
    const at::DeviceType type = device().type();
    if (!s.dense.takes(type) || !s.experts.takes(type) || !s.stats.takes(type)) {
      refuse_key("dp_cp",
                 "process groups without a backend for the device go through the host, so "
                 "that a step cannot be queued",
                 ckpt::ErrorCode::Unsupported);
    }
    if (s.buffers.empty()) {
      refuse_key("adopt_param_buffers",
                 "gathering would allocate memory in a queued step; adopt_param_buffers() "
                 "comes first");
    }
  }

  std::vector<std::vector<uint32_t>> update_parts() override {
    rounds_.reset();
    if (!optimizer_.config().overlap_param_gather) return {};
    rounds_.emplace(gathers_of(sharding_, optimizer_.config()));
    return rounds_->ids_of_parts();
  }
  void send_part(size_t part) override { rounds_->start(part); }
  void finish_sending() override { rounds_->finish(); }
  void gather_params() override {
    static_cast<LayerWiseDistributedOptimizer&>(optimizer_).allgather_params();
  }

 private:
  LayerWiseSharding& sharding_;
  std::optional<ParamRounds> rounds_;  // of the step that is being queued
};

constexpr int64_t kRefused = 255;

// 0: none; else one more than the number of its type.
int64_t kind_of(const Param& param, const at::Tensor& grad) {
  if (!grad.defined()) return 0;
  const at::ScalarType type = grad.scalar_type();
  const bool is_float = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  const bool fits = grad.sizes() == param.param.sizes() && grad.is_contiguous();
  return is_float && fits ? 1 + static_cast<int64_t>(type) : kRefused;
}

// On all ranks alike, before anything moves: ranks that wait for a peer's part would wait for ever.
void check_parts(const std::vector<OptimizedParam*>& params, LayerWiseSharding& sharding,
                 Peers& peers) {
  if (!sharding.splits->are_shared()) return;
  const std::optional<std::string> part = sharding.splits->part_without_grad(params);
  const bool is_refused = peers.any(part.has_value());
  if (!is_refused) return;
  refuse_key(part.value_or(""),
             "some tensor-parallel ranks have a gradient of their part, others have none");
}

// In fp32 and in the order of ranks, whatever the group's own way to sum.
void average(const at::Tensor& grad, int64_t piece_bytes, Collectives& collectives) {
  const at::Tensor flat = grad.view({-1});
  const auto piece = std::max<int64_t>(1, piece_bytes / static_cast<int64_t>(grad.element_size()));
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const int64_t count = std::min(piece, flat.numel() - begin);
    const at::Tensor mine = flat.narrow(0, begin, count);
    const at::Tensor all = at::empty({collectives.size() * count}, mine.options());
    at::Tensor all_bytes = all.view(at::kByte), mine_bytes = mine.view(at::kByte);
    collectives.all_gather(all_bytes, mine_bytes);
    at::Tensor sum = at::zeros({count}, mine.options().dtype(at::kFloat));
    for (int64_t rank = 0; rank < collectives.size(); ++rank) {
      sum.add_(all.narrow(0, rank * count, count).to(at::kFloat));
    }
    mine.copy_(sum.div_(collectives.size()));
  }
}

}  // namespace

std::unique_ptr<Peers> make_peers(Optimizer& optimizer, LayerWiseSharding& sharding) {
  return std::make_unique<LayerWisePeers>(optimizer, sharding);
}

std::vector<double> cells_of_ranks(at::Tensor& mine, Collectives& collectives) {
  at::Tensor all = at::empty({collectives.size() * mine.numel()}, at::kDouble);
  collectives.all_gather(all, mine);
  const at::Tensor by_cell = all.view({collectives.size(), mine.numel()}).t().contiguous();
  return {by_cell.const_data_ptr<double>(), by_cell.const_data_ptr<double>() + by_cell.numel()};
}

// One cell for each parameter, filled by its owner. Where processes hold different parameters under
// one id (model or expert parallel), cells of all of them are gathered and added up id by id.
double LayerWiseDistributedOptimizer::get_grad_norm() {
  LayerWiseSharding& sharding = *sharding_;
  const int64_t cells = sharding.cell_count;
  at::Tensor mine = at::zeros({cells + 1}, at::kDouble);
  auto* const own = mine.mutable_data_ptr<double>();
  for (const OptimizedParam* const param : get_parameters()) {
    own[param->id] = square_sum_for_norm(*param);
  }
  own[cells] = static_cast<double>(own_grad_count(*this));
  if (sharding.one_cell_per_param) {
    sharding.stats.all_reduce_sum(mine);  // each has one addend that is not 0: exact
    sharding.grad_count = static_cast<int64_t>(own[cells]);
    return norm_of({own, static_cast<size_t>(cells)});
  }
  const std::vector<double> all = cells_of_ranks(mine, sharding.stats);
  const auto counts = all.begin() + cells * sharding.stats.size();
  sharding.grad_count = static_cast<int64_t>(std::accumulate(counts, all.end(), 0.0));
  return norm_of({all.begin(), counts});
}

int64_t LayerWiseDistributedOptimizer::count_zeros() {
  return sum_of(Optimizer::count_zeros(), sharding_->stats);
}

// Two model chunks where one is to be gathered behind the step of the other, else one.
std::vector<GatherGroup> gather_groups(LayerWiseSharding& sharding, const OptimizerConfig& config) {
  const auto& is_in_first = sharding.options.is_in_first_model_chunk;
  const bool has_chunks = config.overlap_param_gather_with_optimizer_step && is_in_first;
  std::vector<GatherGroup> groups;
  for (const bool is_first : {true, false}) {
    if (!is_first && !has_chunks) break;
    for (const auto& [params, collectives] :
         {std::pair{&sharding.dense_params, &sharding.dense},
          std::pair{&sharding.expert_params, &sharding.experts}}) {
      GatherGroup group = {{}, collectives};
      for (const SharedParam& param : *params) {
        const ParamInfo& info = sharding.params[param.id].info;
        if (!has_chunks || is_in_first(info) == is_first) group.params.push_back(param);
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

std::vector<std::unique_ptr<ParamGather>> LayerWiseDistributedOptimizer::make_gathers() {
  return gathers_of(*sharding_, config());
}

StepResult LayerWiseDistributedOptimizer::step() {
  const StepResult result = ChainedOptimizer::step();
  const bool has_gathered = config().overlap_param_gather || StepInside::of(*this).is_on_device();
  if (result.update_successful && !has_gathered) allgather_params();
  return result;
}

// Updates parameters in the order in which they travel: a round leaves as soon as its own are done.
bool LayerWiseDistributedOptimizer::step_with_ready_grads() {
  check_parts(get_parameters(), *sharding_, *StepInside::of(*this).peers);
  if (!config().overlap_param_gather) return ChainedOptimizer::step_with_ready_grads();
  update_and_gather(*this, make_gathers(), grad_scale_);
  return true;
}

void LayerWiseDistributedOptimizer::allgather_params() {
  const TimedSection timed(*this, "params-all-gather");
  const at::NoGradGuard no_grad;
  for (const std::unique_ptr<ParamGather>& gather : make_gathers()) gather->run();
}

void LayerWiseDistributedOptimizer::adopt_param_buffers() {
  if (!sharding_->buffers.empty()) return;
  for (const GatherGroup& group : gather_groups(*sharding_, config())) {
    sharding_->buffers.emplace_back(group.params, group.collectives->size());
  }
}

void LayerWiseDistributedOptimizer::broadcast_params() {
  optim::broadcast_params(sharding_->dense_params, sharding_->dense);
  optim::broadcast_params(sharding_->expert_params, sharding_->experts);
}

NamedGrad named_grad(const Param& param, at::Tensor grad) {
  const int64_t kind = kind_of(param, grad);
  return {&param.info, std::move(grad), kind};
}

void check_kinds(const std::vector<NamedGrad>& grads, Collectives& collectives) {
  if (grads.empty()) return;
  at::Tensor largest = at::zeros({2, static_cast<int64_t>(grads.size())}, at::kLong);
  auto* const kinds = largest.mutable_data_ptr<int64_t>();
  auto* const negated = kinds + grads.size();
  for (size_t i = 0; i < grads.size(); ++i) {
    kinds[i] = grads[i].kind;
    negated[i] = -grads[i].kind;
  }
  collectives.all_reduce_max(largest);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (kinds[i] == -negated[i] && kinds[i] != kRefused) continue;
    refuse_key(grads[i].info->name,
               "expected a contiguous gradient of a float type and of the parameter's "
               "shape, on all processes or on none");
  }
}

void LayerWiseDistributedOptimizer::allreduce_grads(
    const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  const at::NoGradGuard no_grad;
  LayerWiseSharding& s = *sharding_;
  const auto named = [&](const std::vector<SharedParam>& shared) {
    std::vector<NamedGrad> grads;
    for (const SharedParam& of : shared) {
      const Param& param = s.params[of.id];
      grads.push_back(named_grad(param, grad_of ? grad_of(param.info) : param.main_grad));
    }
    return grads;
  };
  const std::vector<NamedGrad> dense = named(s.dense_params), experts = named(s.expert_params);
  check_kinds(dense, s.dense);
  check_kinds(experts, s.experts);
  const auto average_all = [&](const std::vector<NamedGrad>& grads, Collectives& collectives) {
    if (collectives.size() == 1) return;
    for (const NamedGrad& of : grads) {
      if (of.grad.defined()) average(of.grad, s.options.gather_bucket_bytes, collectives);
    }
  };
  average_all(dense, s.dense);
  average_all(experts, s.experts);
}

}  // namespace optim
