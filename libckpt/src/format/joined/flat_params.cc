#include "format/joined/flat_params.h"

#include <algorithm>

#include <ckpt/flat_range.h>

namespace ckpt {
namespace {

struct Elements {
  uint64_t begin = 0, count = 0;
};

// What of `wanted` lies in a flat tensor, which is `there`; it starts with element at.first of the
// parameter.
void add_overlap(FlatPart at, Elements there, Elements wanted, FlatParam& param) {
  const uint64_t from = std::max(there.begin, wanted.begin);
  const uint64_t until = std::min(there.begin + there.count, wanted.begin + wanted.count);
  if (from >= until) return;
  at.offset = from - there.begin;
  at.first += from - wanted.begin;
  at.count = until - from;
  param.parts.push_back(at);
}

uint64_t each_of(uint64_t count, uint64_t ranks) { return count / ranks + (count % ranks != 0); }

}  // namespace

std::vector<FlatParam> cut_groups(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths) {
  std::vector<FlatParam> params;
  for (size_t group = 0; group < groups.size(); ++group) {
    uint64_t offset = 0;
    for (const NamedShape& named : groups[group]) {
      FlatParam param{named.name, named.shape, {}};
      const uint64_t count = element_count(named.shape);
      uint64_t begin = 0;
      for (size_t rank = 0; rank < lengths.size() && group < lengths[rank].size(); ++rank) {
        add_overlap({rank, group, 0, 0, 0}, {begin, lengths[rank][group]}, {offset, count}, param);
        begin += lengths[rank][group];
      }
      offset += count + named.padding;
      params.push_back(std::move(param));
    }
  }
  return params;
}

std::vector<FlatParam> cut_params(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths) {
  std::vector<FlatParam> params;
  uint64_t offset = 0;
  for (const std::vector<NamedShape>& group : groups) {
    for (const NamedShape& named : group) {
      FlatParam param{named.name, named.shape, {}};
      const uint64_t count = element_count(named.shape), each = each_of(count, lengths.size());
      for (size_t rank = 0; rank < lengths.size(); ++rank) {
        const uint64_t first = std::min(count, rank * each);
        uint64_t begin = 0;
        for (size_t i = 0; i < lengths[rank].size(); ++i) {
          add_overlap({rank, i, 0, first, 0}, {begin, lengths[rank][i]},
                      {offset, std::min(each, count - first)}, param);
          begin += lengths[rank][i];
        }
      }
      offset += each;
      params.push_back(std::move(param));
    }
  }
  return params;
}

uint64_t count_of_group(const std::vector<NamedShape>& group) {
  uint64_t count = 0;
  for (const NamedShape& named : group) count += element_count(named.shape) + named.padding;
  return count;
}

uint64_t count_of_rank(std::span<const std::vector<NamedShape>> groups, uint64_t ranks) {
  uint64_t count = 0;
  for (const std::vector<NamedShape>& group : groups) {
    for (const NamedShape& named : group) count += each_of(element_count(named.shape), ranks);
  }
  return count;
}

TensorEntry tensor_of_parts(const FlatParam& param, DType dtype,
                            const std::function<const TensorEntry*(const FlatPart&)>& flat) {
  TensorEntry entry{{}, param.name, dtype, param.shape, {}};
  const uint64_t element_bytes = bytes_per_element(dtype);
  for (const FlatPart& part : param.parts) {
    const TensorEntry* const tensor = flat(part);
    if (tensor == nullptr) continue;
    const Chunk& chunk = tensor->chunks.at(0);
    uint64_t offset = chunk.payload_offset_bytes + part.offset * element_bytes;
    for (Box& box : boxes_of_flat_range(whole(param.shape), part.first, part.count)) {
      const uint64_t count = element_count(box.sizes);
      entry.chunks.push_back({std::move(box), chunk.region, offset});
      offset += count * element_bytes;
    }
  }
  return entry;
}

}  // namespace ckpt
