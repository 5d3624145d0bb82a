#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/joined/module_tree.h"

namespace ckpt {

// FSDP1 (`use_orig_params=False`) makes one flat parameter of each of its units: a module's
// parameters, without those of units inside of it, behind each other. A rank has a part, all parts
// are of one length, zeros fill the last. Units are numbered as module.parameters() meets them: the
// root's first, then those of its modules from the outside in. No file says which modules are
// units; sizes do. Pure. Source: torch/distributed/fsdp/_flat_param.py of PyTorch 2.11.

struct FlatUnits {
  // Of each flat parameter, without padding; empty where `problem` says why it is not known.
  std::vector<uint64_t> elements;
  std::string problem;
};

// `part_elements`: of a rank's part of each flat parameter, as its state says; nullopt: it has
// none. A size is known where every choice of units that fits all parts gives that size.
FlatUnits find_flat_units(std::span<const UnitParam> model,
                          std::span<const std::optional<uint64_t>> part_elements, uint64_t parts);

}  // namespace ckpt
