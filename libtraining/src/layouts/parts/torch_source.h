#pragma once

#include <string>
#include <vector>

#include <training/opened_training.h>

#include "args/value_place.h"
#include "grid/rank_files.h"

// The rank files of a `torch` folder, by the ranks that wrote them.
namespace optim {

struct TorchSource {
  const OpenedTraining& checkpoint;
  std::vector<WorldRank> ranks;

  // Throws NotFound for a file that is missing.
  const ckpt::Document& document(const std::string& file) const;
  // Throws Corrupt for what is no tensor.
  const ckpt::TensorEntry& tensor_at(const Place& place) const;
};

// The model file of the first rank, whose args tell the grid. Throws NotFound where there is none.
std::string first_model_file(const OpenedTraining& checkpoint);

// Throws Corrupt where a rank file is of no rank of the grid.
void refuse_left_over_files(const TorchSource& source, bool is_layer_wise);

}  // namespace optim
