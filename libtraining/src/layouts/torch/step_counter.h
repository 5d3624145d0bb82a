#pragma once

#include <cstdint>
#include <set>

#include <training/opened_training.h>
#include <training/training_state.h>

#include "args/value_place.h"
#include "grid/layer_wise_view.h"

namespace optim {

// Collects the step counts that rank files of a `torch` checkpoint hold for each parameter. All
// parameters of an optimizer have one count, or none has.
class StepCounter {
 public:
  struct Counted {
    uint32_t param;
    TrainingState& view;
  };
  // As torch's AdamW counts, in a 0-dim tensor, and as SOAP does. Throw Unsupported where the count
  // differs from that of the parameters before.
  void add(const OpenedTraining& source, const ckpt::TensorEntry& tensor, const Place& place,
           const Counted& counted);
  void add(int64_t step, const Place& place, const Counted& counted);

  // When all ranks have been read; also notes the counts that groups hold. Throws Corrupt where
  // some parameters of an optimizer have a count.
  void finish(CommonBuilder& common, TrainingState& view) const;

 private:
  std::set<uint32_t> params_;  // with a count of their own
};

}  // namespace optim
