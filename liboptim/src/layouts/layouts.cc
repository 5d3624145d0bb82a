// The table of layouts, and the two questions that others ask it.
#include "layouts/layouts.h"

#include <algorithm>

#include <ckpt/error.h>

#include "layouts/checkpoint_kind.h"
#include "layouts/common_state.h"
#include "layouts/layer_wise_target.h"
#include "layouts/layer_wise_view.h"
#include "layouts/run_args.h"

namespace optim {
namespace {

using ckpt::Format;

bool is_layer_wise_torch(const ckpt::Checkpoint& checkpoint) {
  return checkpoint.catalog().format == Format::Torch &&
         std::ranges::any_of(checkpoint.catalog().files, [](const ckpt::FileEntry& file) {
           return file.path.find("/layer_wise_optimizer_") != file.path.npos;
         });
}

// Whether args of the common state say so, which lies in the store since August 2026.
bool is_layer_wise_dist(const ckpt::Checkpoint& checkpoint, StoreLayout era) {
  if (checkpoint.catalog().format != Format::TorchDist) return false;
  const bool is_in_store = checkpoint.catalog().find_object(kCommonStateKey) != nullptr;
  if (is_in_store != (era == StoreLayout::August2026)) return false;
  const auto common = read_common_state(checkpoint);
  const auto args = common ? args_of(common->document->tree.root()) : std::nullopt;
  const auto stated = args ? args->find(kLayerWiseArg) : std::nullopt;
  return stated && stated->is(ckpt::Kind::Bool) && stated->as_bool();
}

bool is_layer_wise_dist_of_april(const ckpt::Checkpoint& checkpoint) {
  return is_layer_wise_dist(checkpoint, StoreLayout::April2026);
}
bool is_layer_wise_dist_of_august(const ckpt::Checkpoint& checkpoint) {
  return is_layer_wise_dist(checkpoint, StoreLayout::August2026);
}

TrainingState read_layer_wise_torch(const ckpt::Checkpoint& checkpoint) {
  return name_layer_wise_torch(checkpoint);
}

constexpr LayoutRow kLayouts[] = {
    {"LayerWise, torch", Format::Torch, StoreLayout::April2026, is_layer_wise_torch,
     read_layer_wise_torch, add_torch_files},
    {"LayerWise, torch_dist of April 2026", Format::TorchDist, StoreLayout::April2026,
     is_layer_wise_dist_of_april, name_layer_wise_dist, add_torch_dist_files},
    // Beside it an AdamW of the chain is a DistributedOptimizer, fully reshardable.
    {"LayerWise, torch_dist of August 2026", Format::TorchDist, StoreLayout::August2026,
     is_layer_wise_dist_of_august, name_layer_wise_dist, add_torch_dist_files},
};

}  // namespace

std::span<const LayoutRow> layouts() { return kLayouts; }

const LayoutRow* layout_of(const ckpt::Checkpoint& checkpoint) {
  const auto row = std::ranges::find_if(
      kLayouts, [&](const LayoutRow& each) { return each.recognizes(checkpoint); });
  return row == std::end(kLayouts) ? nullptr : &*row;
}

const LayoutRow* layout_to_write(Format container, StoreLayout era) {
  const auto row = std::ranges::find_if(kLayouts, [&](const LayoutRow& each) {
    return each.write != nullptr && each.container == container && each.era == era;
  });
  return row == std::end(kLayouts) ? nullptr : &*row;
}

bool is_layer_wise(const ckpt::Checkpoint& checkpoint) { return layout_of(checkpoint) != nullptr; }

// What no row recognizes, the first reader of its container refuses in more detail.
TrainingState name_layer_wise(const ckpt::Checkpoint& checkpoint) {
  const LayoutRow* row = layout_of(checkpoint);
  if (row == nullptr) row = layout_to_write(checkpoint.catalog().format, StoreLayout::April2026);
  try {
    if (row != nullptr) return row->read(checkpoint);
  } catch (ckpt::Error& error) {
    if (checkpoint.was_root()) error.below(checkpoint.folder().filename().string());
    if (error.code() == ckpt::ErrorCode::Unsupported) error.hinted(what_works_on(checkpoint));
    throw;
  }
  refuse_kind(checkpoint, "a LayerWise checkpoint of Megatron");
}

}  // namespace optim
