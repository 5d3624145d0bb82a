#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <training/listing.h>
#include <training/opened_training.h>

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
void sort_by_size(KeyBranch& branch);

// What the bytes of rows are for. Objects are what is no tensor, as far as it is stored apart.
enum class ByteUse : uint8_t {
  Weights,
  Averages,  // KeyKind::Average
  Masters,
  Moments,
  OtherState,  // of the optimizer: steps, factors
  RandomStates,
  OtherTensors,
  Objects,
};
std::string_view name(ByteUse use);  // "weights", "other_state", ...

struct UsedBytes {
  ByteUse use = ByteUse::Weights;
  uint64_t count = 0, count_bytes = 0;
};
// The most bytes first; uses that no row has are left out. Bytes that several keys share (tied
// weights) count for each.
std::vector<UsedBytes> sum_uses(std::span<const CatalogRow> rows, const OpenedTraining& checkpoint);

// Points into `rows`.
KeyBranch make_key_tree(std::span<const CatalogRow> rows);

}  // namespace optim
