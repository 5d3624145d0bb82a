#pragma once

#include <optional>
#include <string>
#include <vector>

#include <training/filed_state.h>

// What Megatron-Core of July to September 2026 does to rows under GTP, Generalized Tensor
// Parallelism (gtp_weight_remat_size): the rows of each tensor-parallel rank are padded, and cut a
// second time, over ranks that have other data. A store then has every shard with its padding, as
// if it were real (its issue 7168), and of a gated linear_fc1 the two halves of each shard, instead
// of gate and up of each rank (7161). Pure.
// Source: make_tp_sharded_tensor_for_checkpoint and gtp_remat_shard_dim0 (core 0.20-dev).
namespace optim {

// Stored rows that a tensor-parallel rank has behind its own.
struct PaddedTensor {
  ckpt::TensorEntry first, last;  // rows of the first and of the last rank
  bool is_shared = false;         // several ranks share the tensor's rows
  bool is_weight = false;         // else a master or a state
  const ckpt::TensorEntry* of = nullptr;
};

struct WithoutGtp {
  FiledState state;                   // every row where it is without GTP, none of padding
  uint64_t padded = 0, halved = 0;    // parameters with padding; with gate and up cut in shards
  uint64_t padding_count = 0;         // rows, of weights
  std::string first;                  // parameter that is one of them; empty: none is
  std::vector<PaddedTensor> padding;  // weights, masters and states; `of` those of the source
};

// nullopt: args say nothing of GTP. Throws Unsupported for a parameter of which it is not known
// how many of its rows are padding. Reads nothing; `state` must outlive it.
std::optional<WithoutGtp> without_gtp(const FiledState& state);

}  // namespace optim
