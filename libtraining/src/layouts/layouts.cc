// The table of layouts, and the two questions that others ask it.
#include "layouts/layouts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/named_file.h>
#include <training/key_kind.h>
#include <training/megatron_folders.h>

#include "args/checkpoint_kind.h"
#include "args/common_state.h"
#include "args/run_args.h"
#include "args/run_grid.h"
#include "grid/layer_wise_view.h"
#include "grid/target_form.h"
#include "grid/whole_states.h"
#include "layouts/frozen_in_buffers.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/torch/readers.h"
#include "layouts/torch_dist/readers.h"
#include "model/state_names.h"

namespace optim {
namespace {

using ckpt::Format;
using ckpt::Value;

// What args of the common state say, which lies in the store since August 2026.
enum class StatedSharding : uint8_t { LayerWise, None, DistributedOptimizer };

StatedSharding sharding_of(const Value& args) {
  if (is_true(args, kLayerWiseArg)) return StatedSharding::LayerWise;
  // Megatron-Core up to 0.16 says it by the optimizer's name.
  const auto optimizer = args.find("optimizer");
  if (optimizer && optimizer->is(ckpt::Kind::Str) && optimizer->text().starts_with("dist_")) {
    return StatedSharding::DistributedOptimizer;
  }
  return is_true(args, "use_distributed_optimizer") ? StatedSharding::DistributedOptimizer
                                                    : StatedSharding::None;
}

}  // namespace

// What every row asks of a checkpoint, read once.
struct StatedLayout {
  explicit StatedLayout(const ckpt::Checkpoint& of) : checkpoint(of) {
    if (of.catalog().format != Format::TorchDist) return;
    common = read_common_state(of);
    if (!common) return;
    const auto args = args_of(common->document->tree.root());
    if (args) sharding = sharding_of(*args);
    form = stated_sharding(common->document->tree.root());
    if (!common->key.empty()) {
      era = StoreLayout::August2026;
    } else if (sharding == StatedSharding::LayerWise) {
      era = layout_of_common_file(common->document->tree.root());
    }
  }

  const ckpt::Checkpoint& checkpoint;
  // Of torch_dist.
  std::optional<CommonState> common;
  std::optional<StatedSharding> sharding;
  std::string form;  // of a DistributedOptimizer
  StoreLayout era = StoreLayout::April2026;
};

namespace {

bool is_layer_wise_torch(const StatedLayout& stated) {
  const ckpt::Checkpoint& checkpoint = stated.checkpoint;
  return checkpoint.catalog().format == Format::Torch &&
         (has_rank_files(checkpoint) || RunArgs(checkpoint).is_true(kLayerWiseArg));
}

bool is_dist(const StatedLayout& stated, StoreLayout era, StatedSharding sharding) {
  return stated.sharding == sharding && stated.era == era;
}

bool is_layer_wise_dist_of_april(const StatedLayout& stated) {
  return is_dist(stated, StoreLayout::April2026, StatedSharding::LayerWise);
}
bool is_layer_wise_dist_of_018(const StatedLayout& stated) {
  return is_dist(stated, StoreLayout::Core018, StatedSharding::LayerWise);
}
bool is_layer_wise_dist_of_august(const StatedLayout& stated) {
  return is_dist(stated, StoreLayout::August2026, StatedSharding::LayerWise);
}

bool is_zero1_dist(const StatedLayout& stated, StoreLayout era, std::string_view form) {
  return is_dist(stated, era, StatedSharding::DistributedOptimizer) && stated.form == form;
}

bool is_fully_reshardable_of_april(const StatedLayout& stated) {
  return is_zero1_dist(stated, StoreLayout::April2026, "fully_reshardable");
}
bool is_fully_reshardable_of_august(const StatedLayout& stated) {
  return is_zero1_dist(stated, StoreLayout::August2026, "fully_reshardable");
}
bool is_dp_reshardable_of_april(const StatedLayout& stated) {
  return is_zero1_dist(stated, StoreLayout::April2026, "dp_reshardable");
}
bool is_dp_reshardable_of_august(const StatedLayout& stated) {
  return is_zero1_dist(stated, StoreLayout::August2026, "dp_reshardable");
}
bool is_flattened_range(const StatedLayout& stated) {
  return is_zero1_dist(stated, StoreLayout::April2026, "fully_sharded_model_space");
}
bool is_gathered(const StatedLayout& stated) {
  return is_zero1_dist(stated, StoreLayout::April2026, "dp_zero_gather_scatter");
}

// Neither groups nor a tensor of an optimizer: the model of a run, saved without.
bool holds_model_alone(const StatedLayout& stated) {
  if (!stated.common || stated.common->document->tree.root().find("optimizer")) return false;
  const ckpt::Catalog& catalog = stated.checkpoint.catalog();
  const auto is_of_state = [](const ckpt::TensorEntry& tensor) {
    return kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState;
  };
  return std::ranges::none_of(catalog.tensors, is_of_state) &&
         std::ranges::none_of(catalog.objects, is_state_object);
}

// Whether --model-only leaves something out.
bool holds_optimizer(const ckpt::Checkpoint& checkpoint) {
  if (checkpoint.catalog().format != Format::Torch) {
    return !holds_model_alone(StatedLayout(checkpoint));
  }
  if (has_rank_files(checkpoint) || has_flat_files(checkpoint)) return true;
  const ckpt::Document* const document = checkpoint.document(RunArgs(checkpoint).file());
  return document != nullptr && document->tree.root().find("optimizer");
}

// A run with a LayerWise optimizer files its model in the same way; its rows recognize that.
bool is_model_alone_dist(const StatedLayout& stated, StoreLayout era) {
  return (is_dist(stated, era, StatedSharding::None) ||
          is_dist(stated, era, StatedSharding::DistributedOptimizer)) &&
         holds_model_alone(stated);
}

bool has_masters(const StatedLayout& stated) {
  const std::vector<ckpt::TensorEntry>& tensors = stated.checkpoint.catalog().tensors;
  return std::ranges::any_of(tensors, [](const ckpt::TensorEntry& tensor) {
    return tensor.key.starts_with(state_key(kMasterState, ""));
  });
}

// Masters beside 16-bit weights: fp32 training has none, and is not read.
bool is_unsharded_dist(const StatedLayout& stated, StoreLayout era) {
  return is_model_alone_dist(stated, era) ||
         (is_dist(stated, era, StatedSharding::None) && has_masters(stated));
}

bool is_unsharded_dist_of_april(const StatedLayout& stated) {
  return is_unsharded_dist(stated, StoreLayout::April2026);
}
bool is_unsharded_dist_of_august(const StatedLayout& stated) {
  return is_unsharded_dist(stated, StoreLayout::August2026);
}

bool is_flat_torch(const StatedLayout& stated) {
  const ckpt::Checkpoint& checkpoint = stated.checkpoint;
  if (checkpoint.catalog().format != Format::Torch) return false;
  if (has_flat_files(checkpoint)) return true;
  const RunArgs args(checkpoint);
  return args.are_there() && sharding_of(*args.args()) == StatedSharding::DistributedOptimizer;
}

// A rank file, of one chunk of the model or of several.
bool holds_model(const Value& root) { return root.find("model") || root.find("model0"); }

bool is_unsharded_torch(const StatedLayout& of) {
  const ckpt::Checkpoint& checkpoint = of.checkpoint;
  if (checkpoint.catalog().format != Format::Torch) return false;
  const RunArgs args(checkpoint);
  const ckpt::Document* const document = checkpoint.document(args.file());
  if (!args.are_there() || document == nullptr) return false;
  const auto stated = args_of(document->tree.root());
  if (!stated || sharding_of(*stated) == StatedSharding::LayerWise) return false;
  const auto optimizer = document->tree.root().find("optimizer");
  if (!optimizer) return holds_model(document->tree.root()) && !has_flat_files(checkpoint);
  return sharding_of(*stated) == StatedSharding::None && optimizer->is(ckpt::Kind::Dict) &&
         optimizer->find("fp32_from_fp16_params");
}

constexpr LayoutRow kLayouts[] = {
    {"LayerWise, torch", Format::Torch, OptimizerSharding::LayerWise, StoreLayout::April2026,
     is_layer_wise_torch, name_layer_wise_torch, add_torch_files},
    {"LayerWise, torch_dist of April 2026", Format::TorchDist, OptimizerSharding::LayerWise,
     StoreLayout::April2026, is_layer_wise_dist_of_april, name_layer_wise_dist,
     add_torch_dist_files},
    // Beside it an AdamW of the chain is a DistributedOptimizer.
    {"LayerWise, torch_dist of Megatron-Core 0.18", Format::TorchDist, OptimizerSharding::LayerWise,
     StoreLayout::Core018, is_layer_wise_dist_of_018, name_layer_wise_dist, add_torch_dist_files},
    {"LayerWise, torch_dist of August 2026", Format::TorchDist, OptimizerSharding::LayerWise,
     StoreLayout::August2026, is_layer_wise_dist_of_august, name_layer_wise_dist,
     add_torch_dist_files},
    {"not sharded, torch", Format::Torch, OptimizerSharding::None, StoreLayout::April2026,
     is_unsharded_torch, name_unsharded_torch, add_torch_files},
    {"not sharded, torch_dist of April 2026", Format::TorchDist, OptimizerSharding::None,
     StoreLayout::April2026, is_unsharded_dist_of_april, name_layer_wise_dist,
     add_torch_dist_files},
    {"not sharded, torch_dist of August 2026", Format::TorchDist, OptimizerSharding::None,
     StoreLayout::August2026, is_unsharded_dist_of_august, name_layer_wise_dist,
     add_torch_dist_files},
    {"fully_reshardable, torch_dist of April 2026", Format::TorchDist,
     OptimizerSharding::FullyReshardable, StoreLayout::April2026, is_fully_reshardable_of_april,
     name_layer_wise_dist, add_torch_dist_files},
    {"fully_reshardable, torch_dist of August 2026", Format::TorchDist,
     OptimizerSharding::FullyReshardable, StoreLayout::August2026, is_fully_reshardable_of_august,
     name_layer_wise_dist, add_torch_dist_files},
    {"fully_sharded_model_space, torch_dist up to 0.14", Format::TorchDist,
     OptimizerSharding::FlattenedRange, StoreLayout::April2026, is_flattened_range,
     name_flattened_ranges, nullptr},
    {"dp_reshardable, torch_dist of April 2026", Format::TorchDist,
     OptimizerSharding::DpReshardable, StoreLayout::April2026, is_dp_reshardable_of_april,
     name_layer_wise_dist, add_torch_dist_files},
    {"dp_reshardable, torch_dist of August 2026", Format::TorchDist,
     OptimizerSharding::DpReshardable, StoreLayout::August2026, is_dp_reshardable_of_august,
     name_layer_wise_dist, add_torch_dist_files},
    {"dp_zero_gather_scatter, torch_dist up to 0.14", Format::TorchDist,
     OptimizerSharding::DpZeroGatherScatter, StoreLayout::April2026, is_gathered,
     name_layer_wise_dist, nullptr},
    {"flat buffers, torch", Format::Torch, OptimizerSharding::FlatFile, StoreLayout::April2026,
     is_flat_torch, name_flat_files, add_torch_files},
};

}  // namespace

std::span<const LayoutRow> layouts() { return kLayouts; }

const LayoutRow* layout_of(const ckpt::Checkpoint& checkpoint) {
  const StatedLayout stated(checkpoint);
  const auto row = std::ranges::find_if(
      kLayouts, [&](const LayoutRow& each) { return each.recognizes(stated); });
  return row == std::end(kLayouts) ? nullptr : &*row;
}

const LayoutRow* layout_to_write(Format container, StoreLayout era, OptimizerSharding sharding) {
  const auto row = std::ranges::find_if(kLayouts, [&](const LayoutRow& each) {
    return each.write != nullptr && each.container == container && each.era == era &&
           each.sharding == sharding;
  });
  return row == std::end(kLayouts) ? nullptr : &*row;
}

bool is_layer_wise(const ckpt::Checkpoint& checkpoint) { return layout_of(checkpoint) != nullptr; }

namespace {

// The parameters that have no place in flat buffers, where the buffers hold all others.
std::optional<std::set<std::string>> proven_frozen(const ckpt::Checkpoint& checkpoint,
                                                   const LayoutRow& row) {
  try {
    auto frozen = find_frozen_in_buffers(checkpoint);
    if (frozen) row.read(checkpoint, {.frozen = *frozen});
    return frozen;
  } catch (const ckpt::Error&) {
    return std::nullopt;  // something else is wrong
  }
}

TrainingState read_row(const ckpt::Checkpoint& checkpoint, const LayoutRow& row,
                       const ReadOptions& options) {
  try {
    return row.read(checkpoint, options);
  } catch (const ckpt::Error& error) {
    const bool may_be_frozen =
        error.code() == ckpt::ErrorCode::Corrupt && !options.model_only && options.frozen.empty();
    const auto frozen = may_be_frozen ? proven_frozen(checkpoint, row) : std::nullopt;
    if (!frozen) throw;
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = *frozen->begin()},
                      "has no place in the flat buffers of the optimizer, as a frozen parameter (" +
                          std::to_string(frozen->size()) + " have none), which is not supported",
                      "--model-only carries all weights, without the optimizer's state");
  }
}

}  // namespace

// What no row recognizes, the first reader of its container refuses in more detail.
TrainingState name_layer_wise(const ckpt::Checkpoint& checkpoint, const ReadOptions& options) {
  const LayoutRow* row = layout_of(checkpoint);
  if (row == nullptr && !is_megatron(checkpoint)) {
    refuse_kind(checkpoint, "a training checkpoint of Megatron");
  }
  if (row == nullptr) row = layout_to_write(checkpoint.catalog().format, StoreLayout::April2026);
  try {
    if (row != nullptr) {
      TrainingState state = read_row(checkpoint, *row, options);
      require_whole_states(state, checkpoint);
      // Without optimizer state there is nothing that a rank would own a part of.
      const bool is_model = state.chain.empty();
      state.sharding = row->sharding;
      if (is_model && is_zero1(state.sharding)) state.sharding = OptimizerSharding::None;
      state.era = row->era;
      if (options.model_only && holds_optimizer(checkpoint)) {
        state.not_carried.push_back({"the optimizer state", "--model-only leaves it out"});
      }
      return state;
    }
  } catch (ckpt::Error& error) {
    if (checkpoint.was_root()) error.below(checkpoint.folder().filename().string());
    if (error.code() == ckpt::ErrorCode::Unsupported) error.hinted(what_works_on(checkpoint));
    throw;
  }
  refuse_kind(checkpoint, "a training checkpoint of Megatron");
}

std::shared_ptr<const ModelRules> read_model_rules(const std::filesystem::path& path) {
  constexpr uint64_t kBytesMax = uint64_t{16} << 20;
  const std::string text = ckpt::read_named_file(path, kBytesMax);
  const ModelRules rules = ModelRules::parse(text, path.string());
  return std::make_shared<const ModelRules>(ModelRules::built_in().with(rules));
}

}  // namespace optim
