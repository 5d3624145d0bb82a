#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/folder.h>
#include <ckpt/limits.h>

#include "format/location/location.h"

namespace ckpt {

// A torch.save file of a checkpoint; `shown`: what its catalog entries call it.
struct TorchSaveFile {
  const Location& location;
  const std::string& name;
  const std::string& shown;
};
// Adds the file, its document and its tensors.
void add_torch_save_file(const TorchSaveFile& what, const Limits& limits, Contents& contents);

// The same of one that may end early: false where it does, which the catalog's file then says.
bool try_torch_save_file(const TorchSaveFile& what, const Limits& limits, Contents& contents);

// Folders of ranks, as a FolderConvention calls them; a torch.save file.
bool is_torch_folder(const Folder& source, Location& location);
bool is_torch_file(const FileHead& file, Location& location);
Contents read_torch_contents(const Location& location, const Limits& limits);

// One torch.save archive, wherever it lies: a .pt file, or an entry of a .distcp file.
//
//   NAME/data.pkl               the value tree; tensors refer to storages by persistent id
//   NAME/byteorder              "little"; absent in old files
//   NAME/data/KEY               a storage, stored, not compressed
//   NAME/.format_version, NAME/.storage_alignment, NAME/version, NAME/.data/serialization_id
//
// Reads the directory and data.pkl (whose CRC-32 is checked), no storage. Throws Corrupt, or
// Unsupported for TorchScript archives and big-endian files.
Document read_torch_save(const RandomAccess& file, uint32_t file_index, ByteRange archive,
                         const Limits& limits);

// The name under which an archive was saved, where it differs from its own in digits alone: another
// rank's. Empty where it does not.
std::string name_when_saved(const RandomAccess& file, std::string_view path, const Limits& limits);

// The first bytes of a file that torch.save wrote before torch 1.6, or since then with
// _use_new_zipfile_serialization=False. 64 bytes are enough.
bool is_legacy_torch_save(std::string_view head);
// Of either kind; any zip archive starts like one.
bool is_torch_save(std::string_view head);
// Such a file, which is no archive (legacy_torch_save.cc tells its form). Reads the pickles, no
// storage; there are no checksums. Throws Corrupt, or Unsupported for big-endian files.
Document read_legacy_torch_save(const RandomAccess& file, uint32_t file_index,
                                const Limits& limits);

// What of a torch.save file is listed as an object: each entry of the root mapping that is no
// tensor, the attributes of those that are (KEY/@name), or the root itself where it is no dict.
struct RootObject {
  std::string pointer;
  NodeId node;
  Kind key_kind = Kind::Str;
};
std::vector<RootObject> root_objects(const Document& document);

}  // namespace ckpt
