// Source: sharded_param_state_dp_reshardable of megatron/core/optimizer/distrib_optimizer.py.
#include "layouts/torch_dist/flat_bucket_chunks.h"

#include <algorithm>

#include "grid/flat_shares.h"

namespace optim {

using ckpt::NodeId;

// One bucket of a buffer, on its way into chunks.
struct FlatBucketChunks::Bucket {
  const FlatBucket& layout;
  std::string prefix;                    // of its keys, up to the state
  const std::vector<uint32_t>& sharing;  // ranks that own a part each
  struct Held {
    uint32_t param = 0;
    ElementRange range;  // in the buffer
    std::vector<ckpt::Box> boxes;
  };
  std::vector<Held> held;  // in the order of the bucket
};

namespace {

// Of a record of so many elements; one segment that is all of a box needs no list.
ckpt::RecordSource source_of(std::vector<ckpt::Segment> segments, uint64_t elements) {
  if (segments.size() != 1) return segments;
  const ckpt::Segment& one = segments[0];
  const bool is_all =
      one.element_count == elements && elements == ckpt::element_count(one.source.box.sizes);
  if (is_all) return one.source;
  return segments;
}

}  // namespace

void FlatBucketChunks::run(const std::function<void(const BucketedCopy& copy)>& on_copy) {
  const bool is_chained = job_.source.chain.size() > 1;
  for (const WorldRank& rank : job_.ranks) {
    for (uint32_t optimizer = 0; optimizer < job_.source.chain.size(); ++optimizer) {
      if (job_.filed.optimizers[optimizer] != &kBuckets) continue;
      if (!target_.buffers().writes(optimizer, rank.at)) continue;
      const uint32_t number = target_.buffers().copy_number(optimizer, rank.at);
      const BucketedCopy copy{
          optimizer,
          (is_chained ? "chained_" + std::to_string(optimizer) + "." : std::string()) +
              "optimizer.distributed.dp_group_idx_" + std::to_string(number) + ".",
          rank.rank, target_.buffers().of(optimizer, rank.at)};
      on_copy(copy);
      for (uint32_t i = 0; i < copy.buffers.size(); ++i) add_buffer(copy, i, rank.at);
    }
  }
}

NodeId FlatBucketChunks::add_sizes(ckpt::ValueTree& tree, const BucketedCopy& copy,
                                   bool is_padded) const {
  const NodeId buffers = tree.list();
  for (const FlatBuffer& buffer : copy.buffers) {
    const NodeId sizes = tree.list();
    for (const FlatBucket& bucket : buffer.layout.buckets) {
      const uint64_t count =
          is_padded ? bucket.range.end - bucket.range.begin : bucket.unpadded_count;
      tree.append(sizes, tree.integer(static_cast<int64_t>(count)));
    }
    const NodeId of_types = tree.dict();
    tree.set_item(of_types, target_.add_types(tree, buffer), sizes);
    tree.append(buffers, of_types);
  }
  return buffers;
}

void FlatBucketChunks::add_buffer(const BucketedCopy& copy, uint32_t number,
                                  const RankCoordinates& at) {
  const FlatBuffer& buffer = copy.buffers[number];
  const std::vector<FlatState> states = states_in(job_.source, buffer);
  const auto& sharing = target_.buffers().has_experts(copy.optimizer)
                            ? ranks_.of_expert(at.etp, at.ep, at.pp)
                            : ranks_.of_dense(at.tp, at.pp);
  std::vector<std::vector<Bucket::Held>> held(buffer.layout.buckets.size());
  for (size_t i = buffer.held.size(); i-- > 0;) {  // the last registered comes first
    const FlatPlace& place = buffer.layout.places[i];
    const uint32_t param = job_.source.model[buffer.held[i].entry].param;
    held[place.bucket].push_back({param, place.range, boxes_on_rank(job_, param, at)});
  }
  for (uint32_t i = 0; i < held.size(); ++i) {
    const Bucket bucket{buffer.layout.buckets[i],
                        copy.prefix + "gbuf_idx_" + std::to_string(number) + ".dtype_" +
                            target_.types_text(buffer) + ".bucket_idx_" + std::to_string(i) + ".",
                        sharing, std::move(held[i])};
    for (const FlatState& state : states) add_state(bucket, state);
  }
}

void FlatBucketChunks::add_state(const Bucket& bucket, const FlatState& state) {
  spec_.tensors.push_back(
      {bucket.prefix + state.name, state.dtype, {bucket.layout.unpadded_count}});
  for (uint32_t i = 0; i < bucket.sharing.size(); ++i) add_part(bucket, state, i);
}

// Of the ranks that share a bucket, what one owns: its parameters, and as zeros what lies between
// them.
void FlatBucketChunks::add_part(const Bucket& bucket, const FlatState& state,
                                uint32_t rank_number) {
  const uint64_t bucket_begin = bucket.layout.range.begin;
  const uint64_t unpadded_end = bucket_begin + bucket.layout.unpadded_count;
  const ElementRange own =
      own_part(bucket.layout, rank_number, static_cast<uint32_t>(bucket.sharing.size()));
  const uint64_t own_end = std::min(own.end, unpadded_end);
  uint64_t next = own.begin;  // the first element that has no chunk yet
  const auto add = [&](uint64_t end, ckpt::RecordSource source) {
    if (end <= next) return;
    spec_.chunks.push_back({static_cast<uint32_t>(spec_.tensors.size() - 1),
                            bucket.sharing[rank_number],
                            {{next - bucket_begin}, {end - next}},
                            std::move(source)});
    next = end;
  };
  for (const auto& [param, place, boxes] : bucket.held) {
    const uint64_t begin = std::max(place.begin, own.begin), end = std::min(place.end, own_end);
    if (begin >= end) continue;
    add(begin, std::vector<ckpt::Segment>());
    add(end, source_of(segments_of(boxes, state_of(job_.source.params[param], state.name),
                                   {begin - place.begin, end - place.begin}, 0),
                       end - begin));
  }
  add(own_end, std::vector<ckpt::Segment>());
}

}  // namespace optim
