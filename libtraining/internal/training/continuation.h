#pragma once

#include <string_view>

#include <training/conversion_facts.h>
#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>

namespace optim {

struct ContinuedAs {
  RunGrid grid;
  FiledAs filed = {};
  bool has_other_buckets = false;  // of flat buffers
  bool is_seeded_anew = false;     // the random states are not those of the source
  uint64_t vocabulary_rows = 0;    // with padding; 0: as stored
  bool loses_step_count = false;   // Megatron does not load Adam's
};

// Pure. Source: muon_tp_mode of megatron/core/optimizer/muon.py, whose "blockwise" orthogonalises
// what each tensor-parallel rank has; megatron/core/tensor_parallel/cross_entropy.py, which sums
// over the rows of padding, too; docs/compatibility.md has steps that were tried.
Continuation continuation_of(const FiledState& source, const ContinuedAs& result);

// What Megatron says where it loads an optimizer's state from torch_dist, which it saves of SGD and
// does not load; empty: it does. `optimizer`: as args have it. Source: init_state_fn of
// megatron/core/optimizer/__init__.py; tried with April, core 0.19.0 and August 2026.
inline std::string_view load_failure_of_store(std::string_view optimizer, bool is_layer_wise) {
  const bool fails = optimizer == "sgd" && !is_layer_wise;
  return fails ? "TypeError: 'NoneType' object is not callable" : "";
}

}  // namespace optim
