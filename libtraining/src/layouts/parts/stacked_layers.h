#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/catalog.h>

#include "model/megatron_keys.h"

// Parts of what torch_dist stacks over layers and experts.
namespace optim {

// "X._extra_state/shard_1.0_2.4" -> X._extra_state, layer 1 of 2 and expert 0 of 4;
// "rng_state/shard_0.1_2.2" -> pipeline and tensor rank.
struct ObjectShard {
  std::string key;
  std::vector<uint32_t> indices, counts;  // of one length
};
std::optional<ObjectShard> parse_object_key(const std::string& text);
std::string object_key(const ObjectShard& shard);

// Throws Corrupt where one of the parts that a key counts is missing.
void check_object_shards(std::span<const ckpt::ObjectEntry> objects, const KeyRules& rules);

// The parts of a stacked tensor, layer by layer and in each expert by expert: the leading axes are
// taken off. Keys stay as they are.
std::vector<ckpt::TensorEntry> unstack(const ckpt::TensorEntry& stacked, StackedAxes axes);

}  // namespace optim
