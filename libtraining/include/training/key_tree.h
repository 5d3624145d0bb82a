#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <training/export.h>
#include <training/listing.h>

namespace optim {

// The nested structure that keys spell: "/model/a~1b" lies below "model" as "a/b",
// "decoder.layers.0.weight" four steps deep; where keys name a file, that is the first step.
// Numbers, as those of layers, follow each other: 2 before 10. Other steps are in the order of the
// rows. Keys of more steps than kKeyDepthMax keep the rest in one piece.
inline constexpr size_t kKeyDepthMax = 32;

struct KeyBranch {
  std::string name;                                              // one step; empty at the root
  uint64_t tensor_count = 0, object_count = 0, count_bytes = 0;  // of all that lies below
  const CatalogRow* row = nullptr;  // of the key that ends here; of several the last
  std::vector<std::unique_ptr<KeyBranch>> children;
};

// The largest branch first, equal ones as they were, at every step.
TRAINING_EXPORT void sort_by_size(KeyBranch& branch);

// Points into `rows`.
TRAINING_EXPORT KeyBranch make_key_tree(std::span<const CatalogRow> rows);

}  // namespace optim
