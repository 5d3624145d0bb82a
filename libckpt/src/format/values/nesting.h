#pragma once

#include <optional>
#include <unordered_map>

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

}  // namespace ckpt
