// One layer of what torch_dist stacks over layers: tensors by their leading dimension, objects by
// the numbers in their keys.
#include "layouts/stacked_layers.h"

#include <charconv>
#include <map>
#include <set>
#include <utility>

#include <ckpt/error.h>

#include "model/megatron_keys.h"

namespace optim {

using ckpt::TensorEntry;

std::optional<ObjectShard> parse_object_key(const std::string& text) {
  const size_t slash = text.rfind("/shard_");
  if (slash == text.npos) return std::nullopt;
  ObjectShard shard{text.substr(0, slash), 0, 0};
  const char* const end = text.data() + text.size();
  const auto [middle, error] = std::from_chars(text.data() + slash + 7, end, shard.index);
  if (error != std::errc() || middle == end || *middle != '_') return std::nullopt;
  const auto [last, second_error] = std::from_chars(middle + 1, end, shard.count);
  if (second_error != std::errc() || last != end) return std::nullopt;
  return shard;
}

void check_object_shards(std::span<const ckpt::ObjectEntry> objects) {
  std::map<std::string, std::set<uint32_t>> found;
  std::map<std::string, uint32_t> counts;
  for (const ckpt::ObjectEntry& object : objects) {
    const auto shard = parse_object_key(object.key);
    if (!shard || !object.file.empty() || !is_stacked_key(shard->key)) continue;
    found[shard->key].insert(shard->index);
    counts[shard->key] = shard->count;
  }
  for (const auto& [key, layers] : found) {
    if (layers.size() >= counts[key]) continue;
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = ".metadata", .key = key},
                      "holds " + std::to_string(layers.size()) + " of " +
                          std::to_string(counts[key]) + " layers");
  }
}

TensorEntry layer_of(const TensorEntry& stacked, uint32_t layer, std::string key) {
  TensorEntry tensor{{}, std::move(key), stacked.dtype, {}, {}};
  tensor.shape.assign(stacked.shape.begin() + 1, stacked.shape.end());
  for (const ckpt::Chunk& chunk : stacked.chunks) {
    const ckpt::Box& box = chunk.box;
    if (layer < box.offsets[0] || layer >= box.offsets[0] + box.sizes[0]) continue;
    ckpt::Chunk part{
        {{box.offsets.begin() + 1, box.offsets.end()}, {box.sizes.begin() + 1, box.sizes.end()}},
        chunk.region};
    part.payload_offset_bytes = chunk.payload_offset_bytes +
                                (layer - box.offsets[0]) * ckpt::element_count(part.box.sizes) *
                                    ckpt::bytes_per_element(stacked.dtype);
    tensor.chunks.push_back(std::move(part));
  }
  return tensor;
}

}  // namespace optim
