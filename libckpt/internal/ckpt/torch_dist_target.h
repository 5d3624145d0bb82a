#pragma once

#include <cstdint>
#include <deque>
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

struct DistTensor {
  std::string key;
  DType dtype = DType::Float32;
  Extents shape;
  bool requires_grad = false;  // what .metadata says of it
  // What the tensor is that `shape` is the flattened fragments of, as Megatron-Core up to 0.14 says
  // it (mcore_data); empty: it is stored as it is.
  Extents unflattened = {};
};
struct DistChunk {
  uint32_t tensor = 0;                               // index into DistSpec::tensors
  uint32_t rank = 0;                                 // writes it to __{rank}_0.distcp
  Box box;                                           // of the stored tensor
  RecordSource source;                               // no segments: zeros
  std::shared_ptr<const DistPlace> place = nullptr;  // instead of source and rank
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
  std::vector<DistTensor> tensors;  // in metadata's order; each has a key of its own and chunks
  std::deque<DistChunk> chunks;     // in the order of their files
  uint32_t rank_count = 1;
  bool chunk_index = false;               // plain DCP numbers the chunks of a tensor
  std::optional<ValueTree> planner_data;  // plain DCP: {key: (step, ...)}, all strings or ints
  std::string typed_paths;                // a pickle: TypedPaths::kAttribute; empty: none
};
// The .distcp files and .metadata (last). The caller adds what a convention wants beside them.
// Chunks of a spec that is moved here are freed one by one, so that 10^6 are not described twice.
std::vector<TargetFile> make_torch_dist_files(DistSpec spec);

}  // namespace ckpt
