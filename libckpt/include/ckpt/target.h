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
  std::vector<std::string> warnings = {};
  std::vector<std::string> casts = {};  // "3 tensors: float32 to bfloat16": what has another type
};

}  // namespace ckpt
