#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ckpt/catalog.h>

#include "model/megatron_keys.h"

// Tensors of a torch_dist folder that have a key for each segment of their rows (RowSegment).
namespace optim {

class SegmentedTensors {
 public:
  // Joins those of which all segments are there; of other modules that have such names, each is a
  // tensor of its own. Throws Corrupt where segments do not fit together, or those of a state are
  // of other sizes than its parameter's.
  SegmentedTensors(const ckpt::Catalog& catalog, const KeyRules& rules);

  // Whether a tensor of the catalog is in a joined one.
  bool has(size_t tensor) const { return !is_joined_.empty() && is_joined_[tensor]; }
  // Under the key of the whole.
  const std::vector<ckpt::TensorEntry>& joined() const { return joined_; }
  // Rows of each segment, by the key of a parameter; null: it has none.
  const std::vector<uint64_t>* sections(const std::string& key) const;

 private:
  void join(const std::string& key, size_t axis, const std::vector<const ckpt::TensorEntry*>& of);

  std::vector<bool> is_joined_;  // [tensor of the catalog]; empty: none is
  std::vector<ckpt::TensorEntry> joined_;
  std::map<std::string, std::vector<uint64_t>> sections_;
};

}  // namespace optim
