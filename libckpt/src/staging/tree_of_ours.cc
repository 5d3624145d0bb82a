#include "staging/tree_of_ours.h"

#include <set>

namespace ckpt {

namespace fs = std::filesystem;

FolderTree tree_of_ours(const Place& content, const std::vector<std::string>& files) {
  FolderTree tree{{}, {content}};
  if (kind_of_entry(content) == EntryKind::Folder) tree = walk(content);
  if (files.empty()) return tree;
  std::set<fs::path> ours;
  for (const std::string& file : files) {
    fs::path path = file.empty() ? content.path() : content.path() / file;
    while (ours.insert(path).second && path != content.path()) path = path.parent_path();
  }
  const auto check = [&](const Place& place, EntryKind wanted) {
    const EntryKind kind = kind_of_entry(place);
    if (kind == EntryKind::Absent || (kind == wanted && ours.contains(place.path()))) return;
    refuse_foreign(place.path(), "is not one of the files that this output is made of");
  };
  for (const Place& folder : tree.folders) check(folder, EntryKind::Folder);
  for (const Place& file : tree.files) check(file, EntryKind::File);
  return tree;
}

}  // namespace ckpt
