#pragma once

#include <span>
#include <string>

#include <ckpt/torch_dist_target.h>

namespace ckpt {

// Where everything of a DistSpec lies, in its order.
struct DistPlaces {
  std::span<const DistPlace> objects, chunks;
};

// The pickle that .metadata is: opcode by opcode, since a tree of values would take a kilobyte and
// more for each chunk.
std::string write_dist_metadata(const DistSpec& spec, const DistPlaces& places);

}  // namespace ckpt
