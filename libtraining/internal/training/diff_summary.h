#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/diff.h>

// Differences of two checkpoints by the modules of their model, and in the order of their size.
namespace optim {

// How the tensors and objects of one module differ.
struct ModuleDifference {
  std::string module;             // "decoder.layers.0", "embedding.word_embeddings", "optimizer"
  uint64_t compared_count = 0;    // tensors and objects in A or B
  uint64_t different_count = 0;   // of these
  uint64_t structural_count = 0;  // of those: missing, or of another shape, dtype or kind of key
  uint64_t rounded_count = 0;     // of those: of another dtype, compared when rounded
  uint64_t value_count = 0;       // of compared_count: tensors whose elements were compared
  uint64_t nonfinite_count = 0;   // differing elements of which one is NaN or infinite
  // Over all elements that differ and are finite.
  double max_abs = 0, max_rel = 0;
  // ValueDifference::relative_norm(), the largest of a weight; of a state where no weight differs.
  double relative_norm = 0;
  uint64_t weight_count = 0;  // of different_count: weights with other values
  std::optional<double> max_ulp_distance;
  // Of its parameters that differ, without states, where DiffOptions::changes took them.
  std::optional<ckpt::ValueDifference::Products> products = {};
  std::string worst;  // ckpt::qualified_key() of the tensor or object that differs most
  bool worst_is_structural = false;  // and of it no element was compared
};

// Modules that differ, the worst first: those with structural differences, with NaN or infinities
// on one side, with weights that differ, then by relative_norm and max_abs; and how many there are.
struct DiffSummary {
  std::vector<ModuleDifference> modules;
  size_t module_count = 0;
};

struct Compared {
  const ckpt::Differences& differences;
  const ckpt::Inventory &a, &b;
  bool keys_only = false;  // no elements were compared
};
DiffSummary summarize(const Compared& compared);

// The same order for tensors, equal ones by file and key.
void sort_worst_first(std::vector<ckpt::TensorDifference>& tensors);

}  // namespace optim
