#include <algorithm>
#include <map>

#include "sharding/flat_layout.h"
#include "step/element_ranges/range_sharding.h"

namespace optim {
namespace {

// Parameters of one buffer, in model order.
struct Buffer {
  std::vector<uint32_t> ids;
  std::vector<FlatParam> params;
};

std::map<at::ScalarType, Buffer> buffers_of(const RangeSharding& sharding, bool of_experts) {
  std::map<at::ScalarType, Buffer> buffers;
  for (const uint32_t id : sharding.registered) {
    if (sharding.is_expert[id] != of_experts) continue;
    const Param& param = sharding.params[id];
    Buffer& buffer = buffers[param.param.scalar_type()];
    buffer.ids.push_back(id);
    buffer.params.push_back({static_cast<uint64_t>(param.param.numel()),
                             param.info.attributes.truthy("shared_embedding")});
  }
  return buffers;
}

void cut(const Buffer& buffer, const BufferRules& rules, SharingGroup& group) {
  const auto processes = static_cast<uint64_t>(group.collectives.size());
  const FlatLayout layout = lay_out_flat(buffer.params, rules);
  for (size_t i = 0; i < buffer.ids.size(); ++i) {
    const ElementRange place = layout.places[i].range;
    const ElementRange bucket = layout.buckets[layout.places[i].bucket].range;
    const uint64_t share = (bucket.end - bucket.begin) / processes;  // a bucket is a multiple
    for (uint64_t rank = 0; rank < processes; ++rank) {
      const uint64_t begin = std::max(place.begin, bucket.begin + rank * share);
      const uint64_t end = std::min(place.end, bucket.begin + (rank + 1) * share);
      if (begin >= end) continue;
      group.pieces.push_back({buffer.ids[i], static_cast<int>(rank),
                              static_cast<int64_t>(begin - place.begin),
                              static_cast<int64_t>(end - begin)});
    }
  }
}

}  // namespace

std::span<const ElementPiece> SharingGroup::pieces_of(uint32_t id) const {
  const auto [first, last] = std::ranges::equal_range(pieces, id, {}, &ElementPiece::id);
  return {first, last};
}

const ElementPiece* RangeSharding::own_piece(uint32_t id) {
  SharingGroup& group = group_of(id);
  for (const ElementPiece& piece : group.pieces_of(id)) {
    if (piece.owner == group.collectives.rank()) return &piece;
  }
  return nullptr;
}

void cut_into_ranges(RangeSharding& sharding) {
  for (SharingGroup* const group : sharding.groups()) {
    const bool of_experts = group == &sharding.experts;
    BufferRules rules =
        distributed_optimizer_buffers(static_cast<uint32_t>(group->collectives.size()),
                                      sharding.options.pad_buckets_for_high_nccl_busbw);
    rules.bucket_elements = sharding.options.bucket_elements;
    for (const auto& [type, buffer] : buffers_of(sharding, of_experts)) cut(buffer, rules, *group);
    std::ranges::stable_sort(group->pieces, {}, &ElementPiece::id);
    for (uint32_t id = 0; id < sharding.params.size(); ++id) {
      if (sharding.is_expert[id] == of_experts) group->ids.push_back(id);
    }
  }
}

}  // namespace optim
