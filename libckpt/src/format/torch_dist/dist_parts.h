#pragma once

#include <cstdint>
#include <string>

#include "base/text_map.h"
#include "format/torch_dist/dist_metadata.h"

namespace ckpt {

// __R.metadata, which ranks write that save without talking to each other (use_collectives=False).
std::string rank_metadata_name(uint32_t rank);

// Puts together what the ranks say, in their order. A chunk that several ranks stored is a replica:
// the first one is kept. An object that an earlier rank has, too, may be another: it is listed as
// one of the file __R.metadata.
class DistMetadataParts {
 public:
  // Throws Corrupt, with `name` and the key, where ranks disagree about a tensor.
  void add(DistMetadata part, const std::string& name);
  // Throws Corrupt where chunks leave a hole, as they do when the file of a rank is missing.
  DistMetadata finish();

 private:
  void add_tensor(TensorEntry tensor, const std::string& name);

  DistMetadata whole_;
  TextMap<size_t> tensors_;
  TextMap<uint32_t> files_;
  TextSet objects_, chunks_;
};

}  // namespace ckpt
