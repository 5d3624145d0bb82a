#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>

namespace ckpt {

// A checkpoint to be written, as data: which files, which archives in them, where each payload
// comes from. Every byte offset follows from it before the first byte is written; only checksums
// are filled in on the way.

struct TensorSource {  // row-major bytes of a box of a tensor of the source
  std::shared_ptr<const TensorEntry> tensor;
  Box box;
};
struct StorageSource {  // a storage of the source, as it is
  StorageRegion region;
};
using RecordSource =
    std::variant<TensorSource, StorageSource, std::string>;  // string: the bytes themselves

struct TargetRecord {
  uint64_t count_bytes = 0;
  RecordSource source;
};

struct BareTensor {  // an archive that holds one row-major tensor: made when it is written, so that
                     // 10^6 cost little
  DType dtype = DType::Float32;
  Extents shape;
};

// One torch.save stream. Record i becomes the member data/i, the storage with key "i" of the tree.
struct TargetArchive {
  std::string name;  // folder inside the zip: "archive", or the stem of the file
  std::variant<BareTensor, std::shared_ptr<const ValueTree>> content;
  std::vector<TargetRecord> records;
};

struct TargetFile {
  std::string path;  // relative to the target folder; empty if the target is one file
  std::vector<TargetArchive> archives;  // back to back
  std::string bytes;                    // the content, if there are no archives
};

struct NotCarried {
  std::string what;  // a key, or what the user would call it
  std::string reason;
};

struct Target {
  Format format = Format::Torch;
  std::vector<TargetFile>
      files;  // in the order in which they are published: what marks completeness comes last
  std::vector<NotCarried> not_carried;
  std::vector<std::string> warnings;
};

// Bytes that an archive takes, exactly as execute() writes it.
CKPT_EXPORT uint64_t archive_count_bytes(const TargetArchive& archive);

// --- torch_dist / PyTorch DCP
// ---------------------------------------------------------------------------------

struct DistChunk {
  std::string key;
  DType dtype = DType::Float32;
  Extents global_shape;
  Box box;  // of the stored tensor
  TensorSource source;
  uint32_t rank = 0;           // writes it to __{rank}_0.distcp
  bool requires_grad = false;  // what .metadata says of the tensor
};
struct DistObject {
  std::string key;
  std::shared_ptr<const ValueTree> tree;  // what torch.save is given (Megatron: a list of one)
  std::vector<TargetRecord> records;
  uint32_t rank = 0;
};
struct DistSpec {
  std::vector<DistObject> objects;
  std::vector<DistChunk>
      chunks;  // in the order of their files; metadata lists keys in order of first use
  uint32_t rank_count = 1;
  bool chunk_index = false;  // plain DCP numbers the chunks of a tensor, Megatron does not
  std::optional<ValueTree> planner_data;  // plain DCP
};
// The .distcp files and .metadata (last). The caller adds common.pt and metadata.json where
// Megatron wants them.
CKPT_EXPORT std::vector<TargetFile> make_torch_dist_files(const DistSpec& spec);

// --- Plain state dicts
// ----------------------------------------------------------------------------------------

class Checkpoint;
struct TargetSpec {
  Format format = Format::Torch;
};
// torch.save file -> DCP folder and back, flattened and unflattened as torch.distributed.checkpoint
// does it. Megatron checkpoints are refused (Unsupported): liboptim's make_layer_wise_target knows
// their layout.
CKPT_EXPORT Target make_target(const Checkpoint& source, const TargetSpec& spec);

}  // namespace ckpt
