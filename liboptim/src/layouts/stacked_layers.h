#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ckpt/catalog.h>

// One layer of what torch_dist stacks over layers.
namespace optim {

// "X._extra_state/shard_1_2" -> X._extra_state, layer 1 of 2.
struct ObjectShard {
  std::string key;
  uint32_t index = 0, count = 0;
};
std::optional<ObjectShard> parse_object_key(const std::string& text);

// Throws Corrupt where an extra state that is stacked over layers lacks one of them.
void check_object_shards(std::span<const ckpt::ObjectEntry> objects);

// Layer `layer` of a stacked tensor, under another key: the leading dimension is taken off.
ckpt::TensorEntry layer_of(const ckpt::TensorEntry& stacked, uint32_t layer, std::string key);

}  // namespace optim
