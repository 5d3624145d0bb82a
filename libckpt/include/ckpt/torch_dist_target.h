#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/target.h>

namespace ckpt {

// A torch_dist folder (PyTorch DCP) to be written.

// Where an entry lies already: its file is none of the target's own, but linked beside them.
struct DistPlace {
  std::string path;
  ByteRange bytes;
};

struct DistChunk {
  std::string key;
  DType dtype = DType::Float32;
  Extents global_shape;
  Box box;                                        // of the stored tensor
  RecordSource source;                            // no segments: zeros
  uint32_t rank = 0;                              // writes it to __{rank}_0.distcp
  bool requires_grad = false;                     // what .metadata says of the tensor
  std::optional<DistPlace> place = std::nullopt;  // instead of source and rank
};
struct DistObject {
  std::string key;
  std::shared_ptr<const ValueTree> tree;  // what torch.save is given
  std::vector<TargetRecord> records;
  uint32_t rank = 0;
  std::optional<DistPlace> place = std::nullopt;  // instead of tree, records and rank
};
struct DistSpec {
  std::vector<DistObject> objects;
  std::vector<DistChunk>
      chunks;  // in the order of their files; metadata lists keys in order of first use
  uint32_t rank_count = 1;
  bool chunk_index = false;               // plain DCP numbers the chunks of a tensor
  std::optional<ValueTree> planner_data;  // plain DCP: {key: (step, ...)}, all strings or ints
};
// The .distcp files and .metadata (last). The caller adds what a convention wants beside them.
CKPT_EXPORT std::vector<TargetFile> make_torch_dist_files(const DistSpec& spec);

}  // namespace ckpt
