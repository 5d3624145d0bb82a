#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/joined/module_tree.h"

namespace ckpt {

// FSDP1 with `use_orig_params=True` makes flat parameters as without (flat_units.h), but each of
// the model's begins at a multiple of 16 bytes in the type that FSDP computes with, and the
// optimizer has, of each, the elements in the rank's part: of one without elements there no state.
// No file says which modules are units, nor the type. Pure. Source:
// torch/distributed/fsdp/_flat_param.py of PyTorch 2.11.

// A parameter in its unit's flat parameter, of which each part has `each` elements.
struct FlatPlace {
  uint64_t begin = 0, elements = 0, each = 0;

  // Of the parameter's elements, the first one of a part, and how many it has.
  uint64_t first(uint64_t part) const;
  uint64_t count(uint64_t part) const { return first(part + 1) - first(part); }
};

struct FlatPlaces {
  std::vector<std::optional<FlatPlace>> of_params;  // nullopt: not known
  std::string problem;                              // why that of one with a state is not known
  bool is_contradiction = false;                    // nothing fits the counts
};

// `counts`: elements of each parameter on each part; empty: not known, as without a state.
// `may_lack`: parameters that may be tied to others, so that they are not there. The places are
// those in `wanted` parts: known where all choices that fit the counts give each part the same.
FlatPlaces find_flat_places(std::span<const UnitParam> model,
                            std::span<const std::vector<uint64_t>> counts,
                            const std::vector<size_t>& may_lack, uint64_t wanted);

}  // namespace ckpt
