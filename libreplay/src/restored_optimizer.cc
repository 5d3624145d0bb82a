#include "restored_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ckpt/error.h>
#include <optim/checkpoint_args.h>
#include <optim/checkpoint_bridge.h>
#include <optim/rule_table.h>

#include "group_settings.h"
#include "step/device/device_loading.h"
#include "step/device/device_ops.h"

namespace optim {
namespace {

using ckpt::Value;

at::Tensor load(const ReplaySource& source, const TensorRef& tensor, const at::Device& device) {
  if (device.is_cpu()) return load_tensor(source.checkpoint, *tensor);
  return load_in_slabs(source.checkpoint, *tensor, {device});
}

// The arguments say how a fused qkv weight is split, the weight has its own rows.
void check_qkv_rows(const ParamInfo& info, const RuleConfig& rule) {
  const QkvSplit* const given = qkv_split_of(rule);
  if (given == nullptr || !info.attributes.is_qkv) return;
  const QkvSplit& split = *given;
  const int64_t group_rows = split.query_rows + split.key_rows + split.value_rows;
  const int64_t rows = info.shape.empty() ? 0 : info.shape.front();
  if (rows > 0 && rows % group_rows == 0) return;
  refuse_checkpoint(ckpt::ErrorCode::Corrupt, info.name,
                    "expected a multiple of the " + std::to_string(group_rows) +
                        " rows of a query group (from args), found " + std::to_string(rows));
}

// Recorded gradients are those behind the loss scale, so that a step does not need it. What becomes
// of the scale is not computed.
constexpr const char* kGradScaler = "grad_scaler";

// Said before the work, not after.
void refuse_unwritten_output(const FiledState& state, const ReplayOptions& options) {
  if (options.output.empty()) return;
  if (state.filed.is_zero1()) {
    refuse_checkpoint(
        ckpt::ErrorCode::Unsupported, "param_state_sharding_type",
        "the state of a DistributedOptimizer (ZeRO-1) is read, but not written; without -o the "
        "steps are replayed");
  }
  for (const ChainedOptimizerState& optimizer : state.chain) {
    for (const auto& [key, node] : optimizer.others) {
      if (key != kGradScaler) continue;
      refuse_checkpoint(
          ckpt::ErrorCode::Unsupported, key,
          "the loss scale behind the steps is not computed, so the result cannot be written; "
          "without -o the steps are replayed");
    }
  }
}

void refuse_other_state(const ChainedOptimizerState& optimizer) {
  for (const auto* others : {&optimizer.others, &optimizer.inner_others}) {
    for (const auto& [key, node] : *others) {
      if (key == kGradScaler) continue;
      refuse_checkpoint(ckpt::ErrorCode::Unsupported, key,
                        "the optimizer has this state, which cannot be replayed");
    }
  }
}

// Steps are replayed with moments in float32: those of fewer bits would be rounded otherwise.
at::Tensor load_state(const ReplaySource& source, const TensorRef& tensor,
                      const at::Device& device) {
  const at::Tensor state = load(source, tensor, device);
  if (state.scalar_type() != at::kFloat) {
    refuse_checkpoint(ckpt::ErrorCode::Unsupported, tensor->key,
                      "is not float32: optimizer state of other types cannot be replayed");
  }
  return state;
}

// Group by group as in the checkpoint, parameters in model order, without masters or state.
std::vector<std::vector<OptimizerGroup>> restore_groups(const ReplaySource& source,
                                                        const OptimizerConfig& config,
                                                        const Gradients* init,
                                                        const ReplayOptions& options) {
  const at::Device device = replay_device(options);
  const FiledState& state = source.state;
  for (const RankItem& item : state.rank_items) {
    refuse_checkpoint(ckpt::ErrorCode::Unsupported, item.name,
                      "is kept by individual ranks and cannot be replayed");
  }
  std::vector<std::vector<OptimizerGroup>> chain;
  for (size_t o = 0; o < state.chain.size(); ++o) {
    const ChainedOptimizerState& optimizer = state.chain[o];
    refuse_other_state(optimizer);
    chain.emplace_back();
    for (const ckpt::NodeId node : optimizer.groups) {
      chain.back().push_back(restore_group(
          {state.common.tree.value(node), static_cast<uint32_t>(o), optimizer.step_layout,
           source.overrides.era().value_or(options.era), source.overrides},
          config, state.args()));
    }
  }
  for (const TrainedParam& param : state.params) {
    if (!param.info.requires_grad) continue;  // a buffer
    const at::Tensor weight =
        init ? init->initial(param.info).to(device) : load(source, param.weight, device);
    OptimizerGroup& group = chain.at(param.optimizer).at(param.group);
    for (ParamInfo& info : source.cuts.pieces_of(param.info)) {
      check_qkv_rows(info, group.rule_config);
      OptimizedParam made;
      made.model.param = source.cuts.piece(weight, info.name);
      made.model.info = std::move(info);
      group.params.push_back(std::move(made));
    }
  }
  return chain;
}

int64_t whole_step(double step) {
  constexpr double kStepMax = 1e15;  // exact in every type that can hold it
  if (!(step >= 0 && step <= kStepMax && step == std::floor(step))) {
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, "step", "is not a valid step count");
  }
  return static_cast<int64_t>(step);
}

// The value that all parameters of an optimizer share, from the bytes of a 0-dim tensor.
int64_t shared_step(const ChainedOptimizerState& optimizer) {
  const auto as = [&]<class T>(T value) {
    if (optimizer.step_bytes.size() != sizeof value) {
      refuse_checkpoint(ckpt::ErrorCode::Corrupt, "step", "has the wrong size");
    }
    std::memcpy(&value, optimizer.step_bytes.data(), sizeof value);
    return static_cast<double>(value);
  };
  double step = 0;
  switch (optimizer.step_dtype) {
    case ckpt::DType::Float32: step = as(float{}); break;
    case ckpt::DType::Float64: step = as(double{}); break;
    case ckpt::DType::Int32: step = as(int32_t{}); break;
    case ckpt::DType::Int64: step = as(int64_t{}); break;
    default: refuse_checkpoint(ckpt::ErrorCode::Unsupported, "step", "has an unusual type");
  }
  return whole_step(step);
}

void load_owned_state(const ReplaySource& source, LayerWiseDistributedOptimizer& optimizer) {
  const at::NoGradGuard no_grad;
  std::map<std::string, const TrainedParam*> by_name;
  for (const TrainedParam& param : source.state.params) by_name[param.info.name] = &param;
  for (OptimizedParam* const param : optimizer.get_parameters()) {
    const std::string& name = param->model.info.name;
    const at::Device device = param->model.param.device();
    const TrainedParam& saved = *by_name.at(source.cuts.whole_name(name));
    const auto own = [&](const at::Tensor& whole) { return source.cuts.piece(whole, name); };
    if (has_master(*param)) param->main_param.copy_(own(load(source, saved.master, device)));
    for (const auto& [state, value] : saved.states) {
      param->state[state] = own(load_state(source, value, device));
    }
    param->step = saved_step(source.state, saved);
  }
}

// Of whole tensors, or pieces of them: no rank has a part of one. What validate() calls an invalid
// argument is Corrupt here, since the checkpoint says it.
OptimizerConfig config_of_pieces(const Value& args) {
  OptimizerConfig config = config_from_args(args);
  config.muon_tp_mode = MuonTpMode::Blockwise;
  if (!config.use_precision_aware_optimizer) config.use_distributed_optimizer = false;
  try {
    config.validate();
  } catch (const ckpt::Error& error) {
    const bool is_invalid = error.code() == ckpt::ErrorCode::InvalidArgument;
    refuse_checkpoint(is_invalid ? ckpt::ErrorCode::Corrupt : error.code(),
                      "args." + error.where().key, error.problem());
  }
  return config;
}

[[noreturn]] void refuse_scaler(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = kGradScaler}, problem);
}

at::Tensor scale_tensor(const ReplaySource& source, const ckpt::Value& value) {
  const auto view = ckpt::as_tensor(value);
  const ckpt::StorageRecord* const storage =
      view ? source.state.common.find_storage(view->storage_key) : nullptr;
  const bool is_number = storage != nullptr && ckpt::element_count(view->shape) == 1 &&
                         storage->region.bytes.count_bytes == view->storage_count_bytes;
  if (!is_number) refuse_scaler("expected a scale of one element, found another value");
  ckpt::TensorEntry entry;
  entry.key = "grad_scaler/scale";
  entry.dtype = view->dtype;
  entry.shape = view->shape;
  entry.chunks.push_back(
      {ckpt::whole(view->shape), storage->region, 0,
       std::make_shared<ckpt::StridedView>(ckpt::StridedView{view->offset, view->strides})});
  return load_tensor(source.checkpoint, entry);
}

// {scale: float32[1], growth_tracker, hysteresis_tracker} of the first optimizer that has it: all
// of a chain see the same overflows.
StateDict saved_scaler(const ReplaySource& source) {
  const ckpt::Document& common = source.state.common;
  for (const ChainedOptimizerState& optimizer : source.state.chain) {
    for (const auto& [key, node] : optimizer.others) {
      if (key != kGradScaler) continue;
      const ckpt::Value saved = common.tree.value(node);
      const double scale = scale_tensor(source, saved.at("scale")).item<double>();
      return {{std::string("scale"), scale},
              {std::string("growth_tracker"), whole_field(saved, "growth_tracker")},
              {std::string("hysteresis_tracker"), whole_field(saved, "hysteresis_tracker")}};
    }
  }
  refuse_scaler("is missing: gradients of this run are times a loss scale");
}

}  // namespace

at::Device replay_device(const ReplayOptions& options) {
  if (options.device == "cpu") return at::kCPU;
  if (options.device != "cuda") {
    refuse_checkpoint(ckpt::ErrorCode::InvalidArgument, "device", "is neither cpu nor cuda");
  }
  if (options.recorded_grad_norm) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "grad_norm"},
                      "a step on a GPU clips by its own norm, not by a recorded one",
                      "use --device cpu, or leave --grad-norm out");
  }
  if (options.processes.rank.size > 1) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "device"},
                      "a replay on a GPU runs in one process",
                      "use --device cpu, or leave --spawn and the launcher out");
  }
  return use_cuda();
}

std::string canonical_key(const std::string& kind, const std::string& name) {
  return kind == "model" ? name : "optimizer.state." + kind + "." + name;
}

int64_t saved_step(const FiledState& state, const TrainedParam& param) {
  const ChainedOptimizerState& optimizer = state.chain[param.optimizer];
  switch (optimizer.step_layout) {
    case StepLayout::None: return 0;
    case StepLayout::PerParam: return shared_step(optimizer);
    case StepLayout::PerParamNumber: return optimizer.step_number;
    case StepLayout::PerGroup: break;
  }
  // torch's AdamW counts in floating point, which a DistributedOptimizer puts into its groups.
  return whole_step(number_field(state.common.tree.value(optimizer.groups[param.group]), "step"));
}

at::Tensor grad_of(const ReplaySource& source, const Gradients& gradients, int64_t step,
                   const ParamInfo& info) {
  return source.cuts.piece(gradients.grad(step, source.cuts.whole_of(info)), info.name);
}

SavedParam load_saved(const ReplaySource& source, const Gradients* init, const ParamInfo& info) {
  const Cuts& cuts = source.cuts;
  const auto own = [&](const at::Tensor& whole) { return cuts.piece(whole, info.name); };
  if (init != nullptr) {
    const at::Tensor initial = own(init->initial(cuts.whole_of(info)));
    return {initial.to(at::kFloat).contiguous(), {}, 0};
  }
  const TrainedParam& saved =
      *std::ranges::find(source.state.params, cuts.whole_name(info.name),
                         [](const TrainedParam& param) { return param.info.name; });
  SavedParam found;
  found.master = own(load(source, saved.master ? saved.master : saved.weight, at::kCPU));
  for (const auto& [state, value] : saved.states) {
    found.state[state] = own(load_state(source, value, at::kCPU));
  }
  found.step = saved_step(source.state, saved);
  return found;
}

std::unique_ptr<LayerWiseDistributedOptimizer> restore_optimizer(
    const ReplaySource& source, const Gradients* init, const ReplayOptions& options,
    const ProcessGroupCollection& groups) {
  replay_device(options);  // refuses before anything is read
  OptimizerConfig config = config_of_pieces(source.state.args());
  config.log_num_zeros_in_grad = true;
  if (config.fp16 || config.loss_scale) config.loss_scale = 1.0;  // gradients come unscaled
  if (config.use_precision_aware_optimizer) {
    refuse_checkpoint(ckpt::ErrorCode::Unsupported, "args.use_precision_aware_optimizer",
                      "masters and states in lower precision cannot be replayed");
  }
  refuse_unwritten_output(source.state, options);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::vector<OptimizerGroup>& of_one : restore_groups(source, config, init, options)) {
    optimizers.push_back(
        std::make_unique<FP32Optimizer>(std::move(of_one), config, /*wrapped_later=*/true));
  }
  LayerWiseOptions layer_wise;
  layer_wise.ownership = options.ownership;
  layer_wise.layout_ranks = options.data_parallel.value_or(source.state.grid.sizes.data_parallel);
  auto optimizer = std::make_unique<LayerWiseDistributedOptimizer>(std::move(optimizers), config,
                                                                   groups, std::move(layer_wise));
  if (init == nullptr) load_owned_state(source, *optimizer);
  return optimizer;
}

RestoredSchedule restore_schedule(const ReplaySource& source, bool from_init) {
  const Value args = source.state.args();
  const auto rampup = args.find("rampup_batch_size");
  if (rampup && !rampup->is_none()) {
    refuse_checkpoint(ckpt::ErrorCode::Unsupported, "args.rampup_batch_size",
                      "a growing batch size is not handled");
  }
  const Value saved = source.state.common.tree.root().at("opt_param_scheduler");
  RestoredSchedule schedule;
  SchedulerSettings& settings = schedule.settings;
  settings.max_lr = number_field(saved, "max_lr");
  settings.min_lr = number_field(saved, "min_lr");
  settings.lr_warmup_steps = whole_field(saved, "lr_warmup_steps");
  settings.lr_decay_steps = whole_field(saved, "lr_decay_steps");
  settings.lr_decay_style = saved.at("lr_decay_style").text();
  settings.start_wd = number_field(saved, "start_wd");
  settings.end_wd = number_field(saved, "end_wd");
  settings.wd_incr_steps = whole_field(saved, "wd_incr_steps");
  settings.wd_incr_style = saved.at("wd_incr_style").text();
  schedule.increment = whole_field(args, "global_batch_size");
  if (schedule.increment < 1) {
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, "args.global_batch_size", "is not positive");
  }
  source.overrides.apply_to_schedule(args, schedule.increment, settings);
  // What only the arguments say.
  if (args.find("lr_warmup_init")) settings.init_lr = number_field(args, "lr_warmup_init");
  if (settings.lr_decay_style == "WSD") {
    settings.lr_wsd_decay_style = args.at("lr_wsd_decay_style").text();
    const auto samples = args.find("lr_wsd_decay_samples");
    settings.wsd_decay_steps = samples && !samples->is_none()
                                   ? whole_field(args, "lr_wsd_decay_samples")
                                   : whole_field(args, "lr_wsd_decay_iters") * schedule.increment;
  }
  if (!from_init) schedule.num_steps = whole_field(saved, "num_steps");
  if (schedule.num_steps < 0) {
    refuse_checkpoint(ckpt::ErrorCode::Corrupt, "num_steps",
                      "expected at least 0, found a negative number");
  }
  return schedule;
}

int64_t saved_iteration(const ReplaySource& source) {
  return whole_field(source.state.common.tree.root(), "iteration");
}

std::unique_ptr<GradScaler> restore_grad_scaler(const ReplaySource& source) {
  const OptimizerConfig config = config_from_args(source.state.args());
  std::unique_ptr<GradScaler> scaler = make_grad_scaler(config);
  if (scaler == nullptr || config.loss_scale) return scaler;
  try {
    scaler->load_state_dict(saved_scaler(source));
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::InvalidArgument) throw;
    refuse_scaler(error.problem());
  }
  return scaler;
}

at::Tensor unscaled(const at::Tensor& grad, float inverse_scale) {
  if (inverse_scale == 1) return grad;
  return at::mul(grad.to(at::kFloat), static_cast<double>(inverse_scale));
}

}  // namespace optim
