// Flat buckets of a torch_dist folder, as ranks own them: chunks that are cut where parameters end.
// Source: sharded_param_state_dp_reshardable of megatron/core/optimizer/distrib_optimizer.py.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "grid/flat_buffers.h"
#include "layouts/filings/flat_buckets.h"
#include "layouts/job/flat_records.h"
#include "layouts/job/store_files.h"
#include "layouts/parts/stacked_layers.h"
#include "layouts/parts/store_errors.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;
using ckpt::ObjectEntry;
using store_errors::corrupt;

// An optimizer in one of the copies of the model that ranks share.
struct Copy {
  uint32_t optimizer = 0;
  std::string prefix;       // of its keys: "chained_0.optimizer.distributed.dp_group_idx_0."
  uint32_t first_rank = 0;  // of those that share it, which writes its objects
  std::vector<FlatBuffer> buffers;
};

// One bucket of a buffer, on its way into chunks.
struct Bucket {
  const FlatBucket& layout;
  std::string prefix;                    // of its keys, up to the state
  const std::vector<uint32_t>& sharing;  // ranks that own a part each
  struct Held {
    uint32_t param = 0;
    ElementRange range;  // in the buffer
    std::vector<Box> boxes;
  };
  std::vector<Held> held;  // in the order of the bucket
};

// Of a record of so many elements; one segment that is all of a box needs no list.
ckpt::RecordSource source_of(std::vector<ckpt::Segment> segments, uint64_t elements) {
  if (segments.size() != 1) return segments;
  const ckpt::Segment& one = segments[0];
  const bool is_all =
      one.element_count == elements && elements == ckpt::element_count(one.source.box.sizes);
  if (is_all) return one.source;
  return segments;
}

class BucketWriter {
 public:
  BucketWriter(const StoreFiles& files, const Filing& filing)
      : files_(files), job_(files.job), filing_(filing), target_(files.job) {}

  void run() {
    const bool is_chained = job_.source.chain.size() > 1;
    for (const WorldRank& rank : job_.ranks) {
      for (uint32_t optimizer = 0; optimizer < job_.source.chain.size(); ++optimizer) {
        if (job_.filed.optimizers[optimizer] != &filing_) continue;
        if (!target_.buffers().writes(optimizer, rank.at)) continue;
        const uint32_t number = target_.buffers().copy_number(optimizer, rank.at);
        const Copy copy{optimizer,
                        (is_chained ? "chained_" + std::to_string(optimizer) + "." : "") +
                            "optimizer.distributed.dp_group_idx_" + std::to_string(number) + ".",
                        rank.rank, target_.buffers().of(optimizer, rank.at)};
        add_objects(copy);
        for (uint32_t i = 0; i < copy.buffers.size(); ++i) add_buffer(copy, i, rank.at);
      }
    }
  }

 private:
  // Each copy states its optimizer and how its buffers are cut.
  void add_objects(const Copy& copy) {
    const auto add = [&](const std::string& item, const auto& make) {
      ArchiveBuilder archive;
      const NodeId object = make(archive);
      files_.add_object(copy.prefix + item + "/shard_0_1", archive, object, copy.first_rank);
    };
    add("optimizer",
        [&](ArchiveBuilder& archive) { return write_wrapped(job_, copy.optimizer, archive); });
    const TrainingState& source = job_.source;
    for (const auto& [key, node] : source.chain[copy.optimizer].others) {
      add(key, [&, value = node](ArchiveBuilder& archive) {
        return archive.carry(source.common.tree.value(value), source.common);
      });
    }
    add("per_bucket_numel",
        [&](ArchiveBuilder& archive) { return add_sizes(archive.tree(), copy, true); });
    add("per_bucket_numel_unpadded",
        [&](ArchiveBuilder& archive) { return add_sizes(archive.tree(), copy, false); });
  }

  // [{(dtype, gradient's dtype): [elements of each bucket]}], with the padding at the end of
  // buckets or without.
  NodeId add_sizes(ValueTree& tree, const Copy& copy, bool is_padded) const {
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

  void add_buffer(const Copy& copy, uint32_t number, const RankCoordinates& at) {
    const FlatBuffer& buffer = copy.buffers[number];
    const std::vector<FlatState> states = states_in(job_.source, buffer);
    const auto& sharing = target_.buffers().has_experts(copy.optimizer)
                              ? files_.ranks.of_expert(at.etp, at.ep, at.pp)
                              : files_.ranks.of_dense(at.tp, at.pp);
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

  void add_state(const Bucket& bucket, const FlatState& state) {
    files_.spec.tensors.push_back(
        {bucket.prefix + state.name, state.dtype, {bucket.layout.unpadded_count}});
    for (uint32_t i = 0; i < bucket.sharing.size(); ++i) add_part(bucket, state, i);
  }

  // Of the ranks that share a bucket, what one owns: its parameters, and as zeros what lies between
  // them.
  void add_part(const Bucket& bucket, const FlatState& state, uint32_t rank_number) {
    const uint64_t bucket_begin = bucket.layout.range.begin;
    const uint64_t unpadded_end = bucket_begin + bucket.layout.unpadded_count;
    const ElementRange own =
        own_part(bucket.layout, rank_number, static_cast<uint32_t>(bucket.sharing.size()));
    const uint64_t own_end = std::min(own.end, unpadded_end);
    uint64_t next = own.begin;  // the first element that has no chunk yet
    const auto add = [&](uint64_t end, ckpt::RecordSource source) {
      if (end <= next) return;
      files_.spec.chunks.push_back({static_cast<uint32_t>(files_.spec.tensors.size() - 1),
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

  const StoreFiles& files_;
  const TargetJob& job_;
  const Filing& filing_;
  TargetBuffers target_;
};

constexpr StoreHooks kInStore = {
    .owns = [](std::string_view key) { return key.find("optimizer.distributed.") != key.npos; },
    .find = [](const ckpt::Catalog& catalog) -> std::unique_ptr<StoredOptimizers> {
      return std::make_unique<FlatBuckets>(catalog);
    },
    .write = [](const StoreFiles& files,
                const Filing& filing) { BucketWriter(files, filing).run(); }};

constexpr std::string_view kCopyPrefix = "optimizer.distributed.dp_group_idx_";
// A chain is short; a copy's number is below the ranks of the largest run.
constexpr uint32_t kNumberMax = 1u << 30;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes `words` and the number behind them off the text.
std::optional<uint32_t> take_number(std::string_view words, std::string_view& text) {
  if (!text.starts_with(words)) return std::nullopt;
  const std::string_view digits = text.substr(words.size());
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return std::nullopt;
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || number > kNumberMax) return std::nullopt;
  text = digits.substr(static_cast<size_t>(end - digits.data()));
  return number;
}

[[noreturn]] void refuse_key(const std::string& key) {
  corrupt(key, "is not a key of a DistributedOptimizer's flat buckets");
}

}  // namespace

constexpr Filing kBuckets = {"dp_reshardable", ckpt::Format::TorchDist, true, true, true,
                             &kInStore};
// Found and read by the same hooks: keys and groups as those, its state an object (flat_buckets.h).
constexpr Filing kGathered = {"dp_zero_gather_scatter", ckpt::Format::TorchDist, true, true, false};

// Keys of flat buckets, taken apart.
FlatBuckets::FlatBuckets(const ckpt::Catalog& catalog) {
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.file.empty() && is_flat_buffer(tensor)) add(tensor);
  }
  for (const ObjectEntry& object : catalog.objects) {
    if (object.file.empty() && store_hooks_of(object.key) == kBuckets.in_store) add(object);
  }
}

std::map<uint32_t, const Filing*> FlatBuckets::optimizers() const {
  std::map<uint32_t, const Filing*> all;
  for (const auto& [place, copy] : copies_) {
    const auto known = all.emplace(place.first, &kGathered).first;
    if (!copy.buckets.empty()) known->second = &kBuckets;  // of any copy: one may have none
  }
  return all;
}

// `rest`: what stands behind the number of the copy.
StoredCopy& FlatBuckets::copy_of(const std::string& key, std::string_view& rest) {
  const ChainedKey chained = split_chain(key);
  rest = chained.key;
  const auto number = take_number(kCopyPrefix, rest);
  if (!number || !rest.starts_with('.')) refuse_key(key);
  StoredCopy& copy = copies_[{chained.optimizer.value_or(0), *number}];
  const std::string prefix = key.substr(0, key.size() - rest.size());
  if (!copy.prefix.empty() && copy.prefix != prefix) {
    corrupt(key, "belongs to the same optimizer as '" + ckpt::escaped(copy.prefix) + "'");
  }
  copy.prefix = prefix;
  rest.remove_prefix(1);
  return copy;
}

void FlatBuckets::add(const TensorEntry& tensor) {
  std::string_view rest;
  StoredCopy& copy = copy_of(tensor.key, rest);
  const auto buffer = take_number("gbuf_idx_", rest);
  constexpr std::string_view kDtype = ".dtype_", kBucket = ".bucket_idx_";
  const size_t end = rest.find(")" + std::string(kBucket));
  if (!buffer || !rest.starts_with(kDtype) || end == rest.npos) refuse_key(tensor.key);
  const std::string dtypes(rest.substr(kDtype.size(), end + 1 - kDtype.size()));
  rest.remove_prefix(end + 1);
  const auto bucket = take_number(kBucket, rest);
  if (!bucket || rest.size() < 2 || rest.front() != '.') refuse_key(tensor.key);
  StoredBucket& known = copy.buckets[{*buffer, *bucket}];
  if (!known.dtypes.empty() && known.dtypes != dtypes) {
    store_errors::unsupported(tensor.key, "is of a different type from " + known.dtypes +
                                              ", of which there is a buffer of this number, too");
  }
  known.dtypes = dtypes;
  known.tensors.emplace(rest.substr(1), FlatTensor(tensor));
}

void FlatBuckets::add(const ObjectEntry& object) {
  const auto shard = parse_object_key(object.key);
  if (!shard || shard->indices != std::vector<uint32_t>{0} ||
      shard->counts != std::vector<uint32_t>{1}) {
    refuse_key(object.key);
  }
  std::string_view rest;
  StoredCopy& copy = copy_of(shard->key, rest);
  copy.objects.emplace(rest, &object);
}

}  // namespace optim
