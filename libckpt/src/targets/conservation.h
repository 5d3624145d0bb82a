#pragma once

#include <cstdint>

#include <ckpt/target.h>

#include "targets/plain_state.h"

namespace ckpt {

// What a checkpoint holds, as numbers: nothing may be gained or lost but what is listed.
struct Holdings {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t objects = 0;  // values that are no tensor
  bool operator==(const Holdings&) const = default;
  Holdings& operator+=(const Holdings& other);
};

// Of the tensors that a value tree holds.
Holdings holdings_in(const Value& root);

// What a target writes: bare tensors, the records of headers, and the tensors inside archives. An
// archive that is no bare tensor is an object. A tensor in several chunks counts for each.
Holdings holdings_of(const Target& target);

// Of the entries, with the tensors inside objects; and of those that are listed.
Holdings holdings_of(const PlainState& state);
// Of the attributes of the mappings around entries.
Holdings holdings_of_mappings(const PlainState& state);
Holdings listed_holdings(const PlainState& state, bool (*is_listed)(const PlainEntry&));

// std::logic_error, a fault of ours, where `carried` and `listed` are not together what is `held`.
void check_conserved(const Holdings& held, const Holdings& carried, const Holdings& listed);

}  // namespace ckpt
