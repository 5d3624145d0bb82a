#include <training/conservation.h>
#include <training/layer_wise_update.h>

#include <algorithm>
#include <span>

#include <ckpt/write_target.h>

#include "args/iteration_names.h"
#include "convert/checks.h"
#include "state/computed_tensors.h"
#include "state/words.h"

namespace optim {
namespace {

void replace_tensors(FiledState& state, const LayerWiseUpdate& update, ComputedTensors& memory) {
  const auto replace = [&](TensorRef& tensor) {
    const auto bytes = update.tensors.find(tensor->key);
    if (bytes == update.tensors.end() || bytes->second.size() != ckpt::count_bytes(*tensor)) {
      throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = tensor->key},
                  "the update must have the " + std::to_string(ckpt::count_bytes(*tensor)) +
                      " bytes of this tensor");
    }
    TensorEntry replaced = *tensor;
    const auto copy = [from = bytes->second](uint64_t first, std::span<std::byte> out) {
      std::ranges::copy(from.subspan(first, out.size()), out.begin());
    };
    replaced.chunks = memory.add(tensor->key, DType::UInt8, {bytes->second.size()}, copy).chunks;
    for (Chunk& chunk : replaced.chunks) chunk.box = ckpt::whole(tensor->shape);
    tensor = std::make_shared<const TensorEntry>(std::move(replaced));
  };
  for (TrainedParam& param : state.params) {
    replace(param.weight);
    if (param.master) replace(param.master);
    for (StateTensor& kept : param.states) replace(kept.value);
  }
}

std::string step_bytes(DType dtype, int64_t step) {
  const auto bytes_of = [](auto number) {
    return std::string(reinterpret_cast<const char*>(&number), sizeof number);
  };
  switch (dtype) {
    case DType::Float32: return bytes_of(static_cast<float>(step));
    case DType::Float64: return bytes_of(static_cast<double>(step));
    case DType::Int32: return bytes_of(static_cast<int32_t>(step));
    case DType::Int64: return bytes_of(step);
    default:
      throw Error(ErrorCode::Unsupported, {},
                  "unsupported type of a step count: " + std::string(ckpt::name(dtype)));
  }
}

void update_optimizers(FiledState& state, const LayerWiseUpdate& update) {
  ValueTree& tree = state.common.tree;
  for (size_t i = 0; i < state.chain.size() && i < update.optimizers.size(); ++i) {
    ChainedOptimizerState& optimizer = state.chain[i];
    const LayerWiseUpdate::Optimizer& values = update.optimizers[i];
    if (optimizer.step_layout == StepLayout::PerParam) {
      optimizer.step_bytes = step_bytes(optimizer.step_dtype, values.step);
    }
    if (optimizer.step_layout == StepLayout::PerParamNumber) optimizer.step_number = values.step;
    for (size_t g = 0; g < optimizer.groups.size(); ++g) {
      if (optimizer.step_layout == StepLayout::PerGroup) {
        tree.put(optimizer.groups[g], "step", tree.integer(values.step));
      }
      if (g >= values.groups.size()) continue;
      for (const auto& [key, number] : values.groups[g]) {
        tree.put(optimizer.groups[g], key, tree.real(number));
      }
    }
  }
}

void update_common(FiledState& state, const LayerWiseUpdate& update) {
  ValueTree& tree = state.common.tree;
  const NodeId root = tree.root().id();
  tree.put(root, "iteration", tree.integer(update.iteration));
  const auto scheduler = tree.root().find("opt_param_scheduler");
  if (scheduler && scheduler->is(Kind::Dict) && update.scheduler_num_steps) {
    tree.put(scheduler->id(), "num_steps", tree.integer(*update.scheduler_num_steps));
  }
  state.folder_name = megatron_folder(update.iteration);
}

}  // namespace

ConvertReport save_layer_wise(const FiledState& base, const OpenedTraining& source,
                              const LayerWiseUpdate& update,
                              const std::filesystem::path& destination,
                              const ConvertOptions& options) {
  FiledState state = base;
  ComputedTensors memory(source);
  replace_tensors(state, update, memory);
  const auto payloads = memory.payloads();
  update_optimizers(state, update);
  update_common(state, update);
  LayerWiseTargetSpec spec;
  spec.format = options.base.format.value_or(state.filed.container);
  spec.sizes = options.sizes;
  spec.ownership = options.ownership;
  spec.as_root = source.was_root();
  ckpt::Target target = make_layer_wise_target(state, spec);
  ckpt::ConversionSource from{*payloads, source.folder()};
  const RunGrid grid = target_grid(state, spec.sizes);
  const uint64_t rows = target_vocabulary(state, grid, spec.sizes);
  const WrittenAs made{rows, count_states(state, rows)};
  from.check_result = layer_wise_check(state, *payloads, made, target.not_carried, options.base);
  ConvertReport report;
  static_cast<ckpt::ConvertReport&>(report) =
      ckpt::write_target(std::move(target), from, destination, options.base);
  report.layer_wise = true;
  report.source_format = state.filed.container;
  report.source_grid = state.grid;
  report.target_grid = grid;
  return report;
}

}  // namespace optim
