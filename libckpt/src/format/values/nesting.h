#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ckpt/document.h>

#include "codec/python_mapping.h"

namespace ckpt {

using pickle::as_mapping;

// Which values torch.distributed.checkpoint enters when it flattens a state dict: mappings always,
// lists where they hold a tensor, a mapping, or a list that is entered; tuples never. For one tree.
class Nesting {
 public:
  bool is_entered(const Value& list);

 private:
  struct Search {
    Value list;
    size_t next = 0;
  };
  bool holds_leaf(const Value& list) const;
  void advance(Search& search, std::optional<Value>& unknown);

  std::unordered_map<NodeId, bool> entered_;  // by list; false while it is being searched
};

// How a place of a nested state dict is named where nothing nests, in the keys of DCP and of
// safetensors: the steps from the root, joined by '.', as torch.distributed.checkpoint joins them.
// Not reversible: a step may hold dots itself.
class FlatName {
 public:
  void enter(std::string_view step) {
    if (!is_root_) text_ += '.';
    text_ += step;
    is_root_ = false;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool is_root_ = true;
};

}  // namespace ckpt
