// Format `torch`: torch.save files. One file, or a folder of ranks' folders, as a FolderConvention
// calls them, with the files of each.
#include <algorithm>

#include <ckpt/error.h>

#include "base/text.h"
#include "format/torch/torch.h"
#include "format/torch/torch_save.h"
#include "format/values/json_pointer.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> torch_files(const Location& location) {
  if (location.only_file) return {*location.only_file};
  std::vector<std::string> names;
  for (const std::string& folder : location.source->list(location.folder)) {
    const fs::path path = location.folder / folder;
    const bool is_rank = folder.starts_with(location.convention->rank_folder_prefix);
    if (!is_rank || location.source->kind_of(path) != EntryKind::Folder) continue;
    for (const std::string& file : location.source->list(path)) {
      if (fs::path(file).extension() == ".pt") names.push_back(folder + "/" + file);
    }
  }
  std::ranges::sort(names);
  return names;
}

Document read_document(const RandomAccess& file, uint32_t index, const Limits& limits) {
  if (is_legacy_torch_save(head_of(file, 64))) return read_legacy_torch_save(file, index, limits);
  return read_torch_save(file, index, {0, file.size_bytes()}, limits);
}

void read_file(const Location& location, const std::string& name, const Limits& limits,
               Contents& contents) {
  const std::string shown = location.only_file ? "" : name;
  const TorchSaveFile file{location, name, shown};
  if (!location.only_file && !try_torch_save_file(file, limits, contents)) return;
  if (location.only_file) add_torch_save_file(file, limits, contents);
  for (RootObject& object : root_objects(contents.documents.at(name))) {
    contents.catalog.objects.push_back({shown, std::move(object.pointer), std::nullopt});
  }
}

}  // namespace

const Document& add_torch_save_file(const TorchSaveFile& what, const Limits& limits,
                                    Contents& contents) {
  const auto index = static_cast<uint32_t>(contents.catalog.files.size());
  const auto file = open_source(what.location, what.name, what.name, limits);
  contents.catalog.files.push_back({what.name, file->size_bytes()});
  Document document = read_document(*file, index, limits);
  try {
    for (const TensorAt& tensor : tensors_in(document)) {
      contents.catalog.tensors.push_back(make_tensor_entry(document, tensor, what.shown));
    }
  } catch (Error& error) {
    throw error.within({what.name});
  }
  return contents.documents.emplace(what.name, std::move(document)).first->second;
}

bool try_torch_save_file(const TorchSaveFile& what, const Limits& limits, Contents& contents) {
  const size_t index = contents.catalog.files.size();
  try {
    add_torch_save_file(what, limits, contents);
    return true;
  } catch (const Error& error) {
    if (!error.is_incomplete()) throw;
    contents.catalog.files[index].lack = error.problem();
    return false;
  }
}

bool is_torch_folder(const Folder& source, Location& location) {
  const FolderConvention* const convention = location.convention;
  if (convention == nullptr) return false;
  const std::vector<std::string> names = source.list(location.folder);
  return std::ranges::any_of(names, [&](const std::string& name) {
    return name.starts_with(convention->rank_folder_prefix) &&
           source.kind_of(location.folder / name) == EntryKind::Folder;
  });
}

bool is_torch_file(const FileHead& file, Location&) { return is_torch_save(file.bytes); }

Contents read_torch_contents(const Location& location, const Limits& limits) {
  Contents contents;
  contents.catalog.format = Format::Torch;
  contents.catalog.iteration = location.iteration;
  for (const std::string& name : torch_files(location)) {
    read_file(location, name, limits, contents);
  }
  if (!limits.allow_missing_data) refuse_incomplete(contents.catalog);
  contents.catalog.index();
  return contents;
}

}  // namespace ckpt
