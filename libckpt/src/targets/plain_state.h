#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/plain_target.h>
#include <ckpt/target.h>

#include "base/text.h"

namespace ckpt {

// A plain state dict, flattened as torch.distributed.checkpoint flattens (flatten_state_dict):
// mappings are always entered, lists where they hold a tensor or something that is entered, tuples
// never.

struct PathStep {
  std::string text;
  bool is_index = false;  // of a list; else a key of a mapping
  // Where the source says so, in the document PlainState::keys.
  std::optional<Value> key = {};     // the key, where it is no string
  std::optional<Value> holder = {};  // the mapping that the key is one of
};

struct PlainEntry {
  std::string key;  // the steps, joined by '.'
  std::vector<PathStep> path;
  std::shared_ptr<const TensorEntry> tensor;  // null: an object
  bool requires_grad = false;
  std::shared_ptr<const Document> document;  // of an object, or of a tensor with `besides`
  NodeId node = 0;                           // the object or tensor in its document
  // What the tensor is besides its elements, for the list of what is not carried: "the class X, the
  // attribute y"; empty if it is no more than they.
  std::string besides = {};
  bool is_empty_mapping = false;  // an object that torch.distributed.checkpoint flattens to nothing
  bool has_typed_path = false;    // what is no PathStep::key is known to be a string
};

// RFC 6901, from the root of the state dict.
std::string pointer_of(const std::vector<PathStep>& path);
// The steps as torch.distributed.checkpoint joins them.
std::string joined(const std::vector<PathStep>& path);
// Two steps that are not equal have two texts: 0 and "0".
std::string typed_step(const PathStep& step);

// What a mapping loses that becomes flattened keys: nothing, where no key of it is carried.
struct MappingLoss {
  std::string place;  // the pointer of the mapping, or of the key in it; empty: the root
  NotCarried lost;
};

struct PlainState {
  std::vector<PlainEntry> entries;
  std::vector<MappingLoss> mapping_losses;  // apply() makes them not_carried
  std::vector<NotCarried> not_carried;
  std::map<std::string, std::string> header_metadata;  // of safetensors
  std::shared_ptr<const Document> keys = {};
  std::shared_ptr<ValueTree> renamed_keys = {};  // those that apply() made
  // Of files of ranks: parameters by their numbers in the optimizer, where it named them.
  std::vector<std::string> param_names = {};
};

// What a flattened state dict becomes, for the list of what is not carried.
struct PlainTargetWords {
  std::string_view called;
  bool keeps_keys = false;  // and mappings: with their types
};

// Entries point into the checkpoint, which must outlive them. Throws Unsupported where the file
// holds no state dict, or two values have one key.
PlainState read_plain_state(const Checkpoint& source, PlainTargetWords target);

struct Applied {
  uint64_t left_out_count = 0;
  TypeChange types;
};
// Leaves out and renames entries, gives them the types that are asked for, and lists what the
// mappings of those that stay lose. Throws InvalidArgument where nothing is left, or two entries
// get one key; NotFound where a rule names a key that is not there.
Applied apply(const TargetSpec& spec, PlainState& state);

// Which class and attributes each mapping around entries has: those of the mapping that its entries
// come from. Entries of several, which --rename brings together, give a dict.
class MappingTypes {
 public:
  explicit MappingTypes(const std::vector<PlainEntry>& entries);

  // The mapping in the source; nullopt: a dict, as far as anybody knows.
  std::optional<Value> at(const std::string& place) const;
  // What mappings lose that are brought together.
  const std::vector<NotCarried>& losses() const { return losses_; }
  // Those of a class of their own, by place.
  TextMap<Value> objects() const;

  // Appends a step to a place, which starts as "".
  static void enter(std::string& place, const PathStep& step);

 private:
  void add(const std::string& place, const std::string& pointer, const Value& holder);
  void lose(const std::string& pointer, const Value& mapping);

  TextMap<Value> types_;
  TextSet mixed_;
  std::vector<NotCarried> losses_;
};

}  // namespace ckpt
