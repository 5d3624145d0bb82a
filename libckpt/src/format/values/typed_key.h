// Keys of mappings, with their types: 0 is not "0".
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/document.h>

#include "base/text.h"

namespace ckpt {

// key_text(), but with a string in quotes that key_text() makes of a key of another type, too:
// '0', 'None', '(1, 2)'. So keys that are not equal have two texts.
std::string typed_key_text(const Value& key);

// The same of a string.
std::string typed_text(std::string_view text);

// What DCP's planner_data has no place for: its paths, with keys of their own types. Shardwise
// keeps it in .metadata, as an attribute that holds a pickle of {fqn: (step, ...)}. To PyTorch that
// is bytes, which it neither reads nor executes.
class TypedPaths {
 public:
  static constexpr std::string_view kAttribute = "shardwise_typed_paths";

  // Throws Corrupt where the attribute is there and is no such pickle.
  explicit TypedPaths(const ValueTree& dist_metadata);

  bool empty() const { return paths_.empty(); }
  // Of one key, if it has one. Throws Corrupt where its steps are not those of `path`,
  // planner_data's own, but for the types of keys.
  std::optional<Value> find(std::string_view fqn, const Value& path) const;
  // What they lie in.
  const std::shared_ptr<const Document>& document() const { return document_; }

  // Whether they can hold a key: a tensor, which has storages, is none that they can.
  static bool can_hold(const Value& key);

 private:
  std::shared_ptr<const Document> document_;
  TextMap<Value> paths_;
};

}  // namespace ckpt
