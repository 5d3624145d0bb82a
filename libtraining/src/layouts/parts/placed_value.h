#pragma once

#include <ckpt/value.h>
#include <training/opened_training.h>

#include "args/value_place.h"
#include "layouts/parts/rank_items.h"

namespace optim {

// A value of a rank file.
struct PlacedValue {
  ckpt::Value value;
  Place place;
};
// Whether both are the same, the bytes of tensors in them included.
bool are_equal_values(const OpenedTraining& source, const PlacedValue& a, const PlacedValue& b);

// The same for RankItems, of one checkpoint, which must outlive it.
RankItems::AreEqual equal_items_of(const OpenedTraining& source);

}  // namespace optim
