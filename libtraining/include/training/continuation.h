#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <training/export.h>
#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>

namespace optim {

// What the next step of a run that goes on from a result will be, beside that of one that goes on
// from its source with the same batch.
enum class NextStep : uint8_t {
  Same,         // bit for bit
  OrderOfSums,  // equal but for roundings: ranks add up gradients and norms in another order
  Different,    // by construction, whatever the precision
};

struct Continuation {
  NextStep next_step = NextStep::Same;
  std::vector<std::string> reasons = {};  // why it is Different, for users
  bool operator==(const Continuation&) const = default;
};

struct ContinuedAs {
  RunGrid grid;
  FiledAs filed = {};
  bool has_other_buckets = false;  // of flat buffers
  bool is_seeded_anew = false;     // the random states are not those of the source
};

// Pure. Source: muon_tp_mode of megatron/core/optimizer/muon.py, whose "blockwise" orthogonalises
// what each tensor-parallel rank has; docs/compatibility.md has steps that were tried.
TRAINING_EXPORT Continuation continuation_of(const FiledState& source, const ContinuedAs& result);

}  // namespace optim
