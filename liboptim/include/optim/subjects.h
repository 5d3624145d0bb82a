#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/key_pattern.h>
#include <optim/layout_export.h>

// What somebody names who types a key: docs/formats/keys.md.
namespace optim {

// A row of the catalog, or a value inside a torch.save file. Points into the checkpoint.
struct Subject {
  std::string file;  // empty where keys are unique without it
  std::string key;
  const ckpt::TensorEntry* tensor = nullptr;
  const ckpt::ObjectEntry* object = nullptr;
  std::optional<ckpt::Value> value = std::nullopt;
};

// What the keys and globs name, in their order; without one, every tensor and object that has bytes
// of its own. Keys as they are spelled count before other spellings, globs last, rows before what
// lies in them. Throws NotFound, with the nearest key, for one that names nothing, and Unsupported
// for "KEY[0:4]".
OPTIM_LAYOUT_EXPORT std::vector<Subject> find_subjects(const ckpt::Checkpoint& checkpoint,
                                                       std::span<const std::string> typed);

// Leaves what `selection` accepts. Throws NotFound where a key that is to be included is not there.
OPTIM_LAYOUT_EXPORT void keep_selected(std::vector<Subject>& subjects,
                                       ckpt::KeySelection selection);

}  // namespace optim
