#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>
#include <ckpt/value_tree.h>

namespace ckpt {

enum class BesideKind : uint8_t {
  Companion,  // writers of checkpoints are known to put it there; nothing here reads it
  Unknown,
  LeftOver,  // of a checkpoint, but not of this one: from another or an interrupted save
};

// A file or folder that is no part of the opened checkpoint and lies in its folder, in a rank's
// folder, or in the root that was opened.
struct FileBeside {
  std::string path;   // relative to Checkpoint::folder()
  std::string shown;  // as errors name it
  BesideKind kind = BesideKind::Unknown;
  std::string what;  // "the data loader's state of one data-parallel rank"
  bool is_folder = false, is_in_root = false;
  uint64_t count_bytes = 0;  // of a file beside a plain checkpoint
};

// Sorted by `shown`. Empty where the path was a single file: it shares its folder with whatever
// else is there. Other iterations of a root, its tracker, and what is read to check the files are
// not listed. Of a checkpoint without a convention files in subfolders are listed too, up to a
// bound that is said; not those of folders that hold checkpoints themselves, or are hidden.
std::vector<FileBeside> files_beside(const Checkpoint& checkpoint);

// What a conversion of the checkpoint leaves behind: the files beside, but for unknown ones in the
// root, and what ranks keep in their folders that is no model or optimizer.
std::vector<NotCarried> files_not_carried(const Checkpoint& checkpoint);

// The content of a small text file in the folder, or, as "../NAME", in the root that was opened;
// empty where there is none, or it is not small.
std::string text_beside(const Checkpoint& checkpoint, const std::string& file_name);

// YAML in the block style that PyYAML's dump writes, with the types that PyYAML gives to plain
// scalars. Anchors share a node. A tag is data: {"!": its text, "=": the value that has it}. Throws
// Unsupported, by line, for what else YAML has (flow collections but empty ones, literal and folded
// blocks, complex keys, numbers in base 8 or 60), for equal keys and for what is no YAML. `file`:
// for errors.
ValueTree read_yaml(std::string_view text, const std::string& file);

// What lies beside and has one of these names, a folder with all that is in it, as files of a
// target: paths as files_beside() has them. What has more bytes than this, together with what is
// before it, is left out.
std::vector<TargetFile> copies_of_beside(const Checkpoint& checkpoint,
                                         std::span<const std::string_view> names,
                                         uint64_t bytes_max);

}  // namespace ckpt
