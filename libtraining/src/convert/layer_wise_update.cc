#include <training/conservation.h>
#include <training/layer_wise_update.h>

#include <cstring>

#include <ckpt/write_target.h>

#include "args/iteration_names.h"
#include "convert/checks.h"
#include "state/words.h"

namespace optim {
namespace {

// The files of a checkpoint, and behind them one more for each tensor in memory.
class UpdatedPayloads final : public ckpt::PayloadSource {
 public:
  explicit UpdatedPayloads(const OpenedTraining& files)
      : files_(files), first_(static_cast<uint32_t>(files.catalog().files.size())) {}

  ckpt::StorageRegion add(std::span<const std::byte> bytes) {
    const auto file = first_ + static_cast<uint32_t>(memory_.size());
    memory_.push_back(bytes);
    return {.file = file, .bytes = {0, bytes.size()}};
  }

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override {
    return region.file < first_ ? files_.locate(region) : ckpt::LocatedRegion{region};
  }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    if (located.file < first_) return files_.read_bytes(located, offset_bytes, out);
    const auto bytes = memory_[located.file - first_].subspan(offset_bytes, out.size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
  }
  void read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override {
    if (located.file < first_) return files_.read_once(located, offset_bytes, out);
    read_bytes(located, offset_bytes, out);
  }
  std::string file_name(uint32_t file) const override {
    return file < first_ ? files_.file_name(file) : "memory";
  }

 private:
  const OpenedTraining& files_;
  uint32_t first_;
  std::vector<std::span<const std::byte>> memory_;
};

void replace_tensors(FiledState& state, const LayerWiseUpdate& update, UpdatedPayloads& payloads) {
  const auto replace = [&](TensorRef& tensor) {
    const auto bytes = update.tensors.find(tensor->key);
    if (bytes == update.tensors.end() || bytes->second.size() != ckpt::count_bytes(*tensor)) {
      throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = tensor->key},
                  "the update must have the " + std::to_string(ckpt::count_bytes(*tensor)) +
                      " bytes of this tensor");
    }
    TensorEntry replaced = *tensor;
    replaced.chunks = {{ckpt::whole(tensor->shape), payloads.add(bytes->second)}};
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

void set_numbers(ValueTree& tree, NodeId group, const std::map<std::string, double>& numbers) {
  for (const auto& [key, number] : numbers) tree.put(group, key, tree.real(number));
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
      if (g < values.groups.size()) set_numbers(tree, optimizer.groups[g], values.groups[g]);
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
  UpdatedPayloads payloads(source);
  replace_tensors(state, update, payloads);
  update_optimizers(state, update);
  update_common(state, update);
  LayerWiseTargetSpec spec;
  spec.format = options.base.format.value_or(state.filed.container);
  spec.sizes = options.sizes;
  spec.ownership = options.ownership;
  spec.as_root = source.was_root();
  ckpt::Target target = make_layer_wise_target(state, spec);
  ckpt::ConversionSource from{payloads, source.folder()};
  const RunGrid grid = target_grid(state, spec.sizes);
  const uint64_t rows = target_vocabulary(state, grid, spec.sizes);
  const WrittenAs made{rows, count_states(state, rows)};
  from.check_result = layer_wise_check(state, payloads, made, target.not_carried, options.base);
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
