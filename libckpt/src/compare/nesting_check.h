#pragma once

#include <ckpt/inventory.h>

#include "targets/plain_state.h"

namespace ckpt {

// What keys and mappings of a plain state dict are, beside the names that inventories compare.
struct NestedState {
  const PlainState& state;
  Inventory& inventory;
};

// Adds the keys that are no strings to both inventories, so that comparing these compares types and
// values of the keys; of a format that keeps mappings, too, their classes, arguments and
// attributes.
void add_nesting(const NestedState& source, const NestedState& result, Format format);

// std::logic_error where mappings of the result have their keys in another order.
void require_same_order(const PlainState& source, const PlainState& result);

}  // namespace ckpt
