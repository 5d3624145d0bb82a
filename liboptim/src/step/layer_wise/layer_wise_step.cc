// What a LayerWiseDistributedOptimizer does with other processes in a step.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>

#include <map>
#include <optional>
#include <utility>

#include "step/layer_wise/layer_wise_sharding.h"
#include "step/layer_wise/param_rounds.h"
#include "step/optimizer/grad_stats.h"
#include "step/optimizer/timed_section.h"
#include "step/optimizer/update_params.h"

namespace optim {

struct LayerWiseDistributedOptimizer::Gathers {
  std::unique_ptr<ParamGather> dense, experts;
};

namespace {

// Parameters of this process that wait for their update, by id.
using Pending = std::map<uint32_t, PendingUpdate>;

std::vector<PendingUpdate> take(Pending& pending, const std::vector<uint32_t>& ids) {
  std::vector<PendingUpdate> taken;
  for (const uint32_t id : ids) {
    const auto found = pending.find(id);
    if (found == pending.end()) continue;  // without a gradient it stays as it is
    taken.push_back(found->second);
    pending.erase(found);
  }
  return taken;
}

enum class ParamKind { Dense, Expert };

std::unique_ptr<ParamGather> gather_of(LayerWiseSharding& s, ParamKind kind) {
  const bool is_dense = kind == ParamKind::Dense;
  const int64_t bytes = s.options.gather_bucket_bytes;
  const std::optional<AdoptedBuffer>& buffer = is_dense ? s.dense_buffer : s.expert_buffer;
  Collectives& group = is_dense ? s.dense : s.experts;
  if (buffer) return buffer->make_gather(bytes, group);
  return make_copying_gather(is_dense ? s.dense_params : s.expert_params, bytes, group);
}

class LayerWisePeers final : public Peers {
 public:
  LayerWisePeers(Optimizer& optimizer, LayerWiseSharding& sharding)
      : Peers(optimizer), sharding_(sharding) {}

  bool are_there() const override { return sharding_.stats.size() > 1; }

  bool agree_on_overflow(bool found_inf) override {
    const OptimizerConfig& config = optimizer_.config();
    return config.fp16 || config.loss_scale ? any(found_inf) : found_inf;
  }

  bool any(bool mine) override {
    at::Tensor flag = at::zeros({1}, at::kLong);
    *flag.mutable_data_ptr<int64_t>() = mine ? 1 : 0;
    sharding_.stats.all_reduce_max(flag);
    return *flag.const_data_ptr<int64_t>() != 0;
  }

  void barrier() override {
    at::Tensor nothing = at::zeros({1}, at::kLong);
    sharding_.stats.all_reduce_max(nothing);
  }

  int64_t grad_count() override { return sharding_.grad_count; }

  at::Device device() override {
    return sharding_.params.empty() ? at::kCPU : sharding_.params.front().param.device();
  }

  uint32_t stats_count() override { return static_cast<uint32_t>(sharding_.params.size()); }

  void sum_stats(at::Tensor& stats) override {
    if (!sharding_.one_cell_per_param) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "device"},
                        "model and expert parallel processes are not handled on GPUs");
    }
    sharding_.stats.all_reduce_sum(stats);  // each has one addend that is not 0: exact
  }

  std::vector<std::vector<uint32_t>> update_parts() override {
    rounds_.reset();
    if (!optimizer_.config().overlap_param_gather) return {};
    rounds_.emplace(gather_of(sharding_, ParamKind::Dense),
                    gather_of(sharding_, ParamKind::Expert));
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

}  // namespace

std::unique_ptr<Peers> make_peers(Optimizer& optimizer, LayerWiseSharding& sharding) {
  return std::make_unique<LayerWisePeers>(optimizer, sharding);
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
  at::Tensor all = at::empty({sharding.stats.size() * (cells + 1)}, at::kDouble);
  sharding.stats.all_gather(all, mine);
  const auto* const values = all.const_data_ptr<double>();
  std::vector<double> sums;
  double grads = 0;
  for (int64_t cell = 0; cell <= cells; ++cell) {
    for (int64_t rank = 0; rank < sharding.stats.size(); ++rank) {
      const double value = values[rank * (cells + 1) + cell];
      if (cell == cells) {
        grads += value;
      } else {
        sums.push_back(value);
      }
    }
  }
  sharding.grad_count = static_cast<int64_t>(grads);
  return norm_of(sums);
}

int64_t LayerWiseDistributedOptimizer::count_zeros() {
  at::Tensor zeros = at::zeros({1}, at::kLong);
  *zeros.mutable_data_ptr<int64_t>() = Optimizer::count_zeros();
  sharding_->stats.all_reduce_sum(zeros);
  return *zeros.const_data_ptr<int64_t>();
}

LayerWiseDistributedOptimizer::Gathers LayerWiseDistributedOptimizer::make_gathers() {
  return {gather_of(*sharding_, ParamKind::Dense), gather_of(*sharding_, ParamKind::Expert)};
}

StepResult LayerWiseDistributedOptimizer::step() {
  const StepResult result = ChainedOptimizer::step();
  const bool has_gathered = config().overlap_param_gather || StepInside::of(*this).is_on_device();
  if (result.update_successful && !has_gathered) allgather_params();
  return result;
}

// Updates parameters in the order in which they travel: a round leaves as soon as its own are done.
bool LayerWiseDistributedOptimizer::step_with_ready_grads() {
  if (!config().overlap_param_gather) return ChainedOptimizer::step_with_ready_grads();
  const at::NoGradGuard no_grad;
  const StatePrecision precision = state_precision(config());
  Pending pending;
  for (OptimizerGroup* const group : param_groups()) {
    for (OptimizedParam& param : group->params) {
      if (param.grad.defined()) pending[param.id] = {group, &param};
    }
  }
  const Gathers gathers = make_gathers();
  for (ParamGather* const gather : {gathers.dense.get(), gathers.experts.get()}) {
    for (int64_t round = 0; round < gather->round_count(); ++round) {
      update_params(take(pending, gather->needed_for(round)), precision, grad_scale_);
      gather->start(round);
    }
  }
  std::vector<PendingUpdate> rest;  // what nobody else needs
  for (const auto& [id, update] : pending) rest.push_back(update);
  update_params(rest, precision, grad_scale_);
  gathers.dense->finish();
  gathers.experts->finish();
  return true;
}

void LayerWiseDistributedOptimizer::allgather_params() {
  const TimedSection timed(*this, "params-all-gather");
  const at::NoGradGuard no_grad;
  const Gathers gathers = make_gathers();
  for (ParamGather* const gather : {gathers.dense.get(), gathers.experts.get()}) {
    for (int64_t round = 0; round < gather->round_count(); ++round) gather->start(round);
    gather->finish();
  }
}

void LayerWiseDistributedOptimizer::adopt_param_buffers() {
  LayerWiseSharding& s = *sharding_;
  if (s.dense_buffer) return;
  s.dense_buffer.emplace(s.dense_params, s.dense.size());
  s.expert_buffer.emplace(s.expert_params, s.experts.size());
}

void LayerWiseDistributedOptimizer::broadcast_params() {
  optim::broadcast_params(sharding_->dense_params, sharding_->dense);
  optim::broadcast_params(sharding_->expert_params, sharding_->experts);
}

}  // namespace optim
