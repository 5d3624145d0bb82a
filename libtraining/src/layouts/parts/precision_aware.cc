// Tells masters from remainders of masters.
#include "layouts/parts/precision_aware.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

// Of masters that are looked at; all are of one kind.
constexpr size_t kSampledParamsMax = 64;
constexpr uint64_t kSampledElementsMax = 4096;  // of each

constexpr std::string_view kSetting = "use_precision_aware_optimizer";

using Params = std::vector<TrainedParam*>;

Params params_with_master(TrainingState& state, uint32_t optimizer) {
  Params params;
  for (TrainedParam& param : state.params) {
    const bool is_own = is_own_master(param.weight->dtype);
    if (param.master && !is_own && param.optimizer == optimizer) params.push_back(&param);
  }
  return params;
}

struct Sample {
  uint64_t elements = 0, remainders = 0;
};

// Counts 16-bit integers that do not round to their weights, as masters would.
void look_at(const TrainedParam& param, const OpenedTraining& source, Sample& sample) {
  const auto count =
      static_cast<size_t>(std::min(kSampledElementsMax, ckpt::element_count(param.weight->shape)));
  std::vector<float> masters(count);
  std::vector<uint16_t> weights(count);
  ckpt::TensorStream(*param.master, source).read(std::as_writable_bytes(std::span(masters)));
  ckpt::TensorStream(*param.weight, source).read(std::as_writable_bytes(std::span(weights)));
  sample.elements += count;
  for (size_t i = 0; i < count; ++i) {
    const bool is_master = rounds_to_bfloat16(masters[i], weights[i]);
    sample.remainders += !is_master && is_remainder(masters[i]) ? 1 : 0;
  }
}

bool is_summed_as_bfloat16(const TrainedParam& param) {
  return param.weight->dtype == DType::BFloat16 && param.master->dtype == DType::Float32 &&
         param.master->shape == param.weight->shape;
}

bool are_remainders_by_content(const Params& params, const OpenedTraining& source) {
  Sample sample;
  const size_t step = (params.size() + kSampledParamsMax - 1) / kSampledParamsMax;
  for (size_t i = 0; i < params.size(); i += step) {
    if (is_summed_as_bfloat16(*params[i])) look_at(*params[i], source, sample);
  }
  return sample.remainders > sample.elements / 2;
}

[[noreturn]] void refuse_state(ErrorCode code, const TensorEntry& tensor, std::string problem) {
  throw Error(code, {tensor.file, std::nullopt, tensor.key}, std::move(problem));
}

// By their type alone; float32 is not decided by it.
bool are_int16(const Params& params) {
  const bool is_first = params.front()->master->dtype == DType::Int16;
  for (const TrainedParam* const param : params) {
    if ((param->master->dtype == DType::Int16) == is_first) continue;
    refuse_state(ErrorCode::Corrupt, *param->master,
                 "is of type " + std::string(ckpt::name(param->master->dtype)) + ", but '" +
                     ckpt::escaped(params.front()->master->key) +
                     "' of the same optimizer of type " +
                     std::string(ckpt::name(params.front()->master->dtype)));
  }
  return is_first;
}

void make_state(TrainedParam& param) {
  if (param.weight->dtype != DType::BFloat16) {
    refuse_state(
        ErrorCode::Unsupported, *param.master,
        "holds 16-bit remainders of masters, which complete weights of type bfloat16, but the "
        "weight is of type " +
            std::string(ckpt::name(param.weight->dtype)));
  }
  param.states.push_back({std::string(kRemainderState),
                          with_key(*param.master, state_key(kRemainderState, param.info.name))});
  param.master = nullptr;
}

// Of parameters that are kept in fp8 the masters are whole, of others they are remainders.
void take_by_content(const Value& args, const OpenedTraining& source, const Params& params) {
  if (!is_true(args, "fp8_param_gather")) {
    if (!are_remainders_by_content(params, source)) return;
    for (TrainedParam* const param : params) make_state(*param);
    return;
  }
  for (TrainedParam* const param : params) {
    if (are_remainders_by_content({param}, source)) make_state(*param);
  }
}

bool is_float32(const Value& args, std::string_view name) {
  const auto dtype = args.find(name);
  return !dtype || (dtype->is(Kind::Global) && dtype->name() == "float32");
}

// With such fp8 recipes Megatron keeps the masters, and stores moments as FusedAdam holds them:
// float16 ones divided by scales that it does not store.
// Source: use_precision_aware_optimizer_no_fp8_or_ds_fp8 of OptimizerConfig, and
// DistributedOptimizer._get_main_param_and_optimizer_states.
void require_scales(const Value& args) {
  const auto recipe = args.find("fp8_recipe");
  const bool is_other = recipe && recipe->is(Kind::Str) && recipe->text() != "delayed";
  const bool is_offloaded = is_true(args, "optimizer_cpu_offload");
  if (!is_other || is_offloaded || !is_float32(args, "main_params_dtype")) return;
  for (const std::string_view name : {"exp_avg_dtype", "exp_avg_sq_dtype"}) {
    const auto dtype = args.find(name);
    if (!dtype || !dtype->is(Kind::Global) || dtype->name() != "float16") continue;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args/" + std::string(name)},
                "is float16 under the fp8 recipe '" + ckpt::escaped(recipe->text()) +
                    "': Megatron stores such moments divided by scales that it does not store");
  }
}

}  // namespace

void take_remainders(const Value& args, const OpenedTraining& source, TrainingState& state) {
  const bool is_precision_aware = is_true(args, kSetting);
  if (is_precision_aware) require_scales(args);
  for (uint32_t optimizer = 0; optimizer < state.chain.size(); ++optimizer) {
    const Params params = params_with_master(state, optimizer);
    if (params.empty()) continue;
    if (are_int16(params)) {
      for (TrainedParam* const param : params) make_state(*param);
    } else if (is_precision_aware) {
      take_by_content(args, source, params);
    }
  }
}

}  // namespace optim
