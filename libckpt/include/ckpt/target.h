#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/key_pattern.h>

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
// A part of a record: consecutive elements, in row-major order, of a box of a tensor of the source.
struct Segment {
  uint64_t offset_bytes = 0;  // in the record
  TensorSource source;
  uint64_t first_element = 0, element_count = 0;  // of the box
};
// string: the bytes themselves. Segments: ascending and disjoint, with whole elements; a gap that
// none of them fills is written as zeros, and never read.
using RecordSource = std::variant<TensorSource, StorageSource, std::string, std::vector<Segment>>;

struct TargetRecord {
  uint64_t count_bytes = 0;
  RecordSource source;
};

struct BareTensor {  // an archive that holds one row-major tensor: made when it is written, so that
                     // 10^6 cost little
  DType dtype = DType::Float32;
  Extents shape;
};

struct RawHeader {  // no archive: these bytes, then the records, without anything between them
  std::string bytes;
};

// One torch.save stream. Record i becomes the member data/i, the storage with key "i" of the tree.
struct TargetArchive {
  std::string name;  // folder inside the zip: "archive", or the stem of the file
  std::variant<BareTensor, std::shared_ptr<const ValueTree>, RawHeader> content;
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
  // The key of the tensor or object that the target lacks as a whole, as the comparison of the
  // result with its source names it; nullopt: a part of one that it has, or a file. `what` is for
  // users: it may read like the name of something else.
  std::optional<std::string> missing_key = {};
  bool is_changed = false;  // the target has it in another form; nothing of its values is lost
};

struct Target {
  Format format = Format::Torch;
  std::vector<TargetFile>
      files;  // in the order in which they are published: what marks completeness comes last
  std::vector<NotCarried> not_carried;
  uint64_t left_out_count = 0;  // keys that KeyRules do not accept; not in not_carried
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
  Box box;                     // of the stored tensor
  TensorSource source;         // without a tensor: zeros
  uint32_t rank = 0;           // writes it to __{rank}_0.distcp
  bool requires_grad = false;  // what .metadata says of the tensor
};
struct DistObject {
  std::string key;
  std::shared_ptr<const ValueTree> tree;  // what torch.save is given
  std::vector<TargetRecord> records;
  uint32_t rank = 0;
};
struct DistSpec {
  std::vector<DistObject> objects;
  std::vector<DistChunk>
      chunks;  // in the order of their files; metadata lists keys in order of first use
  uint32_t rank_count = 1;
  bool chunk_index = false;               // plain DCP numbers the chunks of a tensor
  std::optional<ValueTree> planner_data;  // plain DCP
};
// The .distcp files and .metadata (last). The caller adds what a convention wants beside them.
CKPT_EXPORT std::vector<TargetFile> make_torch_dist_files(const DistSpec& spec);

// --- safetensors
// --------------------------------------------------------------------------------------

struct SafetensorsSpec {
  struct Tensor {
    std::string key;
    TensorSource source;
  };
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;  // `format` is added where it is missing: "pt"
  bool as_folder = false;  // model.safetensors, or several files and their index
  uint64_t file_bytes_max = uint64_t{5'000'000'000};  // of tensors in one of several files
};
// Adds to `not_carried` the tensors whose type safetensors has not. Throws Unsupported where a key
// is no UTF-8 or a header gets longer than the format allows.
CKPT_EXPORT Target make_safetensors_target(SafetensorsSpec spec,
                                           std::vector<NotCarried> not_carried = {});

// --- Plain state dicts
// ----------------------------------------------------------------------------------------

// Which keys are carried, and under which names.
struct KeyRules {
  KeySelection selection;
  std::vector<KeyRename> renames;  // the first that fits counts
  bool empty() const { return selection.is_everything() && renames.empty(); }

  // To be called with all keys that there are before the functions below. Throws InvalidArgument
  // where no key is left, NotFound where one that is to be included or renamed is not there.
  CKPT_EXPORT void resolve(std::span<const KeyName> keys);
  // Of those keys, how many are not accepted.
  uint64_t left_out_count() const { return left_out_count_; }
  bool accepts(std::string_view key) const { return selection.accepts({}, key); }
  CKPT_EXPORT std::string renamed(std::string_view key) const;

 private:
  uint64_t left_out_count_ = 0;
};

class Checkpoint;
struct TargetSpec {
  Format format = Format::Torch;
  bool as_folder = false;  // safetensors: SafetensorsSpec::as_folder
  KeyRules keys;
};
// A torch.save file, a DCP folder or safetensors as any of them, flattened and unflattened as
// torch.distributed.checkpoint does it. What follows a FolderConvention is refused (Unsupported):
// its folders hold more than a state dict. Throws InvalidArgument where the rules leave nothing or
// give two values one key. The target points into the source's catalog: the source must outlive it.
CKPT_EXPORT Target make_target(const Checkpoint& source, const TargetSpec& spec);

}  // namespace ckpt
