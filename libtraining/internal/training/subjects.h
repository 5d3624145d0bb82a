#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/key_pattern.h>
#include <ckpt/slice.h>
#include <training/opened_training.h>

// What somebody names who types a key: docs/formats/keys.md.
namespace optim {

// A row of the catalog, a tensor of the training state, or a value inside a torch.save file. Points
// into the checkpoint.
struct Subject {
  std::string file;  // empty where keys are unique without it
  std::string key;
  const ckpt::TensorEntry* tensor = nullptr;
  const ckpt::ObjectEntry* object = nullptr;
  std::optional<ckpt::Value> value = std::nullopt;
  std::shared_ptr<const void> owner = nullptr;      // of what is not the checkpoint's
  bool is_logical = false;                          // of the training state
  std::optional<ckpt::Slice> slice = std::nullopt;  // of the tensor, and:
  std::string slice_text = {};                      // "[0:4, :8]", as it was typed
};

// The key of what safetensors files say of themselves: strings by name.
inline constexpr const char* kHeaderMetadata = "__metadata__";

enum class SubjectNames : uint8_t {
  Any,      // as they are stored; where nothing is, of the training state
  Logical,  // of the training state alone
};

// What the keys and globs name, in their order; without one, every tensor and object that has bytes
// of its own. Keys as they are spelled count before other spellings, before slices "KEY[0:4, :8]",
// before globs; stored rows before what lies in them, before the names of the training state:
// NAME and optimizer.state.STATE.NAME, each tensor once, joined from the parts of all ranks. Throws
// NotFound, with the nearest key, for one that names nothing; InvalidArgument for a slice that does
// not fit; where the training state cannot be read, and is asked for, what that throws.
std::vector<Subject> find_subjects(const OpenedTraining& checkpoint,
                                   std::span<const std::string> typed,
                                   SubjectNames names = SubjectNames::Any);

// Leaves what `selection` accepts. Throws NotFound where a key that is to be included is not there.
void keep_selected(std::vector<Subject>& subjects, ckpt::KeySelection selection);

}  // namespace optim
