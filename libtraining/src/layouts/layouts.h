#pragma once

#include <span>
#include <string_view>

#include <training/layer_wise_checkpoint.h>
#include <training/training_state.h>

// The layouts in which a training state can be filed, as a table: reading takes the filing away,
// writing applies another. A layout is one row here and a reader and a writer in this room.
namespace optim {

struct TargetJob;
struct StatedLayout;

struct LayoutRow {
  std::string_view name;  // for people
  ckpt::Format container;
  OptimizerSharding sharding;
  StoreLayout era;  // of Megatron, as it files the optimizers
  // Whether what a checkpoint states is of this layout. The first row that says so reads it.
  bool (*recognizes)(const StatedLayout& stated);
  TrainingState (*read)(const ckpt::Checkpoint& checkpoint, const ReadOptions& options);
  // Adds the files of the iteration's folder; null: this layout is only read.
  void (*write)(TargetJob& job);
};

std::span<const LayoutRow> layouts();

// The row that reads a checkpoint; null where none does.
const LayoutRow* layout_of(const ckpt::Checkpoint& checkpoint);
// The row that writes such files; null where there is none.
const LayoutRow* layout_to_write(ckpt::Format container, StoreLayout era,
                                 OptimizerSharding sharding = OptimizerSharding::LayerWise);

}  // namespace optim
