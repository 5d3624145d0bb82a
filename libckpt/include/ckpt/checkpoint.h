#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/folder.h>
#include <ckpt/limits.h>
#include <ckpt/payload_source.h>

namespace ckpt {
struct FolderConvention;

// A file as it was when it was opened: who reads it later can tell that it has changed since.
struct SourceFile {
  std::filesystem::path path;  // can be opened
  FileState state;
};

struct OpenOptions {
  std::optional<int64_t> iteration;  // of a checkpoint root; default: what the tracker names
  Limits limits;
  // Roots, iterations and folders of ranks are found where this says how they are called.
  const FolderConvention* convention = nullptr;
  std::shared_ptr<const Folder> source = nullptr;  // where the path is; default: the local disk
};

// An opened checkpoint: a torch_dist folder, a folder of ranks' files, a torch.save file or a
// safetensors file, told apart by content. Opening reads metadata only, executes nothing, and
// follows no path out of the folder (links only where limits allow it). Immutable; safe to read
// from many threads.
class CKPT_EXPORT Checkpoint : public PayloadSource {
 public:
  // Throws NotFound (no such path, no such iteration), Corrupt, Unsupported.
  static Checkpoint open(const std::filesystem::path& path, OpenOptions options = {});
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint() override;

  const Catalog& catalog() const;
  const Folder& source() const;                 // where its files are
  const std::filesystem::path& folder() const;  // what file names in the catalog are relative to
  // Every file that was read or may still be, as paths that can be opened, without duplicates.
  std::vector<std::filesystem::path> files() const;
  // The same, as they were before open() read them. Throws NotFound for one that was not there.
  CKPT_PRIVATE std::vector<SourceFile> files_as_opened() const;
  // Whether a file may lie outside of folder(), behind a link: as limits say, or the path named it.
  CKPT_PRIVATE bool may_lead_out(const std::string& file) const;
  CKPT_PRIVATE bool was_root() const;  // opened through a tracker: a writer makes a root again
  CKPT_PRIVATE bool was_file() const;  // the path was that of a file, not of a folder
  CKPT_PRIVATE const Limits& limits() const;
  // Of OpenOptions, where it is followed: rank folders, or a torch_dist folder with a common_file
  // or backend_file, or of an iteration without the paths of PyTorch's own writer; else nullptr.
  CKPT_PRIVATE const FolderConvention* convention() const;
  CKPT_PRIVATE const FolderConvention* known_convention() const;  // of OpenOptions, followed or not

  // The value tree of a torch.save file of the checkpoint; nullptr if there is none.
  const Document* document(std::string_view file) const;
  // Of a torch.save file that was opened alone, or of files of ranks that are read as one: the tree
  // in which keys of the catalog are places; else nullptr.
  const Document* state() const;
  CKPT_PRIVATE const std::string& joined_words() const;  // "files of 4 ranks of FSDP", or empty
  // A torch_dist folder's .metadata without what the catalog holds: the entries of
  // state_dict_metadata are None, storage_data is empty; nullptr for other formats.
  CKPT_PRIVATE const ValueTree* dist_metadata() const;
  // __metadata__ of safetensors files; empty for other formats.
  const std::map<std::string, std::string>& header_metadata() const;
  // Reads an object of a torch_dist folder: the archive's tree as it is stored.
  Document read_object(const ObjectEntry& object) const;

  // Row-major little-endian bytes of `box` of `tensor`; out.size() must be their count. The tensor
  // need not be in catalog(): any entry whose chunks lie in this checkpoint's files will do. Throws
  // Corrupt where chunks leave a hole.
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> out) const;
  // All elements of a tensor of catalog(), or those of a box, row-major. Throws NotFound for a key
  // that no tensor has; InvalidArgument, with the type that was found, where T's is another
  // (DTypeOf), for a box that leaves the tensor, and for a key that several files have.
  template <class T>
  std::vector<T> read_as(std::string_view key, const std::optional<Box>& box = {}) const {
    return read_as<T>(tensor_named(key), box);
  }
  // Of any entry that read() takes.
  template <class T>
  std::vector<T> read_as(const TensorEntry& tensor, const std::optional<Box>& box = {}) const {
    const Box wanted = box_of(tensor, DTypeOf<T>::kValue, box);
    std::vector<T> elements(element_count(wanted.sizes));
    read(tensor, wanted, std::as_writable_bytes(std::span(elements)));
    return elements;
  }
  // Streams the storages of all chunks; throws Corrupt where a CRC-32 is not the archive's.
  CKPT_PRIVATE void check_crc(const TensorEntry& tensor) const;

  LocatedRegion locate(const StorageRegion& region) const override;
  void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  void read_once(const StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override;
  // What was opened, to print in errors about the whole: the folder, or the one file.
  std::string shown_path() const;
  // The path to print for one below folder(): with the iteration's folder where a root was opened.
  CKPT_PRIVATE std::string shown_name(const std::string& path) const;

 private:
  struct State;
  CKPT_PRIVATE explicit Checkpoint(std::unique_ptr<State> state);
  const TensorEntry& tensor_named(std::string_view key) const;
  static Box box_of(const TensorEntry& tensor, DType wanted, const std::optional<Box>& box);
  std::unique_ptr<State> state_;
};

}  // namespace ckpt
