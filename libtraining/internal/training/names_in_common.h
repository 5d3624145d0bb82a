#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/inventory.h>
#include <ckpt/limits.h>
#include <ckpt/payload_source.h>
#include <training/opened_training.h>

namespace optim {

// Of a state dict that is compared or hashed by its places (ckpt::join_places() fails).
inline constexpr const char* kHasPlaces =
    "its places have no names in other formats (joined by dots, two are one name, or one is empty "
    "or begins with '/'); exact places are used";

// Two checkpoints under names that both have.
struct NamedPair {
  ckpt::Inventory a, b;
  const char* names = "stored";  // or "canonical", "huggingface"
  std::vector<std::string> warnings;
  // Of two training states, what their canonical names leave out: objects.
  ckpt::Inventory left_out_a = {}, left_out_b = {};
  // What the tensors of a side lie in; null: its files.
  std::shared_ptr<const ckpt::PayloadSource> products_a = {}, products_b = {};
};

// Opens one of two checkpoints: an error names the checkpoint that it is about.
OpenedTraining open_side(const std::filesystem::path& path, const ckpt::Limits& limits);

// Names of Hugging Face where one is a LayerWise checkpoint, which is compared as it is exported,
// and the other such a folder. Canonical names where both are LayerWise checkpoints or the formats
// differ, else those by which they are stored. Two checkpoints of one format whose canonical names
// are not known are compared under their stored names, with a warning. Throws Unsupported for
// formats that cannot be brought together. `dequantizes`: of Hugging Face folders, tensors of fp8
// and mxfp4 are their products with the scales beside them; InvalidArgument where neither has any.
NamedPair names_in_common(const OpenedTraining& a, const OpenedTraining& b,
                          bool dequantizes = false);

}  // namespace optim
