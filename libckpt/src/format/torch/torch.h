#pragma once

#include <string>

#include <ckpt/limits.h>

#include "format/location/contents.h"
#include "format/location/location.h"

namespace ckpt {

// A torch.save file of a checkpoint; `shown`: what its catalog entries call it.
struct TorchSaveFile {
  const Location& location;
  const std::string& name;
  const std::string& shown;
};
// Adds the file, its document and its tensors.
const Document& add_torch_save_file(const TorchSaveFile& what, const Limits& limits,
                                    Contents& contents);

// The same of one that may end early: false where it does, which the catalog's file then says.
bool try_torch_save_file(const TorchSaveFile& what, const Limits& limits, Contents& contents);

// Folders of ranks, as a FolderConvention calls them; a torch.save file.
bool is_torch_folder(const Folder& source, Location& location);
bool is_torch_file(const FileHead& file, Location& location);
Contents read_torch_contents(const Location& location, const Limits& limits);

}  // namespace ckpt
