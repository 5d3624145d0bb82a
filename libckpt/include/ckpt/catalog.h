#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/box.h>
#include <ckpt/dtype.h>
#include <ckpt/export.h>
#include <ckpt/value.h>

namespace ckpt {

enum class Format : uint8_t { Torch, TorchDist, Safetensors };
CKPT_EXPORT std::string_view name(Format format);  // "torch", "torch_dist", "safetensors"

struct ByteRange {
  uint64_t offset_bytes = 0;
  uint64_t count_bytes = 0;
  uint64_t end_bytes() const { return offset_bytes + count_bytes; }
  bool operator==(const ByteRange&) const = default;
};

// How a payload lies in its region.
enum class Wrapping : uint8_t {
  None,           // the region is the storage itself
  TorchSave,      // the region is a torch.save archive that holds one tensor (a .distcp entry)
  ZstdTorchSave,  // zstd frames that inflate to such an archive
};

// How a tensor views its storage, in elements, where that is not row-major.
struct StridedView {
  uint64_t offset = 0;
  Extents strides;
};

// Bytes of one file of the checkpoint. `crc32` is the archive's checksum of the whole region, where
// it has one. In 32 bytes: a checkpoint may have 10^6 of them.
struct StorageRegion {
  uint32_t file = 0;  // index into Catalog::files
  Wrapping wrapping = Wrapping::None;
  std::optional<uint32_t> crc32 = std::nullopt;
  ByteRange bytes;
};

// The storage that PayloadSource::locate() found in a region, and how its tensor views it.
struct LocatedRegion : StorageRegion {
  std::shared_ptr<const StridedView> view = nullptr;  // null: row-major
};

// A stored box of a tensor. Without `view` the payload is row-major without holes;
// `payload_offset_bytes` is then where the box starts in the unwrapped payload.
struct Chunk {
  Box box;
  StorageRegion region;
  uint64_t payload_offset_bytes = 0;
  std::shared_ptr<const StridedView> view = nullptr;
};

struct Cast;

// A tensor. Replicas were dropped at the door, so chunks are disjoint: they cover the tensor when
// their element counts add up to its own.
struct TensorEntry {
  std::string file;  // set where a key is unique only within its file (of ranks, of a convention)
  std::string key;
  DType dtype = DType::Float32;
  Extents shape;
  std::vector<Chunk> chunks;
  Kind key_kind = Kind::Str;   // of the key's last step, where a torch.save file's mapping gives it
  bool requires_grad = false;  // what .metadata says of it, which PyTorch never applies
  // Storages have the elements in another type, in which `chunks` count them (ckpt/cast.h).
  std::shared_ptr<const Cast> cast = nullptr;
};

// A value that is no tensor: a torch.save archive of its own in torch_dist, a part of a file's
// value tree in torch; there an attribute of a tensor at the root, too (KEY/@name).
struct ObjectEntry {
  std::string file;
  std::string key;
  std::optional<StorageRegion> region = std::nullopt;  // torch_dist only
};

struct FileEntry {
  std::string path;          // relative to the opened folder
  uint64_t count_bytes = 0;  // of an incomplete one: up to the end of what is said to be in it
  bool is_missing = false;   // only under Limits::allow_missing_data; reading from it is NotFound
  // What is not there of it: "is missing", "truncated: 10 of 20 bytes; copy it again". Empty where
  // all of it is, as far as metadata tells; else only under Limits::allow_missing_data.
  std::string lack = {};
};

// What a checkpoint holds: a value, no open files behind it. Order is that of the files.
struct CKPT_EXPORT Catalog {
  Format format = Format::Torch;
  std::optional<int64_t> iteration;
  std::vector<FileEntry> files;
  std::vector<TensorEntry> tensors;
  std::vector<ObjectEntry> objects;

  const TensorEntry* find_tensor(std::string_view key, std::string_view file = {}) const;
  const ObjectEntry* find_object(std::string_view key, std::string_view file = {}) const;
  void index();  // builds the lookup tables; call after the last change

 private:
  std::vector<uint32_t> tensors_by_name_, objects_by_name_;  // by file, then key
};

// The files that lack something, by path.
std::vector<const FileEntry*> lacking_files(const Catalog& catalog);

inline uint64_t count_bytes(const TensorEntry& tensor) {
  return element_count(tensor.shape) * bytes_per_element(tensor.dtype);
}

}  // namespace ckpt
