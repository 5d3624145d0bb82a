// Folders of a root that are taken out of it, or exchanged, in one step.
#include <ckpt/error.h>
#include <ckpt/root.h>

#include "io/directory.h"
#include "io/publish.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemoved = ".shardwise-removed", kPrepared = ".shardwise-trimmed";

// What a mount covers belongs to another file system, or to another folder of this one.
void refuse_mount(const Place& place) {
  if (!is_mount(place)) return;
  throw Error(ErrorCode::Unsupported, {place.path().string()},
              "is a mount, so that what is in it is not removed", "unmount it, or move it away");
}

std::string name_while_removed(const std::string& name) {
  return "." + name + std::string(kRemoved);
}

FolderTree walk_without_mounts(const Place& folder) {
  if (kind_of_entry(folder) != EntryKind::Folder) {
    throw Error(ErrorCode::Unsupported, {folder.path().string()},
                "is a link or a file, not a folder of this root");
  }
  FolderTree tree = walk(folder);
  for (const auto* const places : {&tree.folders, &tree.files}) {
    for (const Place& place : *places) refuse_mount(place);
  }
  return tree;
}

}  // namespace

std::string name_while_prepared(const std::string& name) {
  return "." + name + std::string(kPrepared);
}

uint64_t bytes_in_folder(const fs::path& root, const std::string& name) {
  uint64_t count = 0;
  for (const Place& file : walk_without_mounts(Place::held(root) / name).files) {
    if (const auto state = state_of_entry(file)) count += state->count_bytes;
  }
  return count;
}

void remove_folder(const fs::path& root, const std::string& name) {
  const Place held = Place::held(root);
  const Place removed = held / name_while_removed(name);
  walk_without_mounts(held / name);
  remove_tree(removed);
  rename_to_free_name(held / name, removed);
  Directory::open(held).sync();
  remove(walk_without_mounts(removed));
}

void replace_by_prepared(const fs::path& root, const std::string& name) {
  const Place held = Place::held(root);
  const Place prepared = held / name_while_prepared(name);
  walk_without_mounts(held / name);
  if (!exchange_names(prepared, held / name)) {
    throw Error(ErrorCode::Unsupported, {(root / name).string()},
                "cannot be replaced in one step on this file system");
  }
  Directory::open(held).sync();
  remove(walk_without_mounts(prepared));
}

std::vector<std::string> clean_removed(const fs::path& root) {
  const Place held = Place::held(root);
  std::vector<std::string> cleaned;
  for (const std::string& name : Directory::open(held).list()) {
    const bool is_ours =
        name.starts_with('.') && (name.ends_with(kRemoved) || name.ends_with(kPrepared));
    if (!is_ours || kind_of_entry(held / name) != EntryKind::Folder) continue;
    remove(walk_without_mounts(held / name));
    cleaned.push_back(name);
  }
  return cleaned;
}

}  // namespace ckpt
