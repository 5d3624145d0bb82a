#pragma once

#include <string>
#include <vector>

#include <ckpt/torch_dist_target.h>

namespace ckpt {

// Where everything of a DistSpec lies, in its order.
struct DistPlaces {
  std::vector<std::string> paths;  // [rank] of what has no place of its own
  std::vector<ByteRange> objects, chunks;
};

// The pickle that .metadata is: opcode by opcode, since a tree of values would take a kilobyte and
// more for each chunk.
std::string write_dist_metadata(const DistSpec& spec, const DistPlaces& places);

}  // namespace ckpt
