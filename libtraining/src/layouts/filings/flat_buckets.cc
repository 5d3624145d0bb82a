// Megatron's own layout of the buffers must give the buckets that the folder has.
#include "layouts/filings/flat_buckets.h"

#include <algorithm>
#include <deque>
#include <memory>

#include <ckpt/tensor_stream.h>

#include "args/value_place.h"
#include "grid/flat_buffers.h"
#include "grid/rank_files.h"
#include "layouts/parts/rank_items.h"
#include "layouts/parts/store_errors.h"
#include "state/state_values.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ObjectEntry;
using store_errors::corrupt;

constexpr std::string_view kGroups = "optimizer", kSizes = "per_bucket_numel",
                           kUnpaddedSizes = "per_bucket_numel_unpadded", kState = "param_state";

bool are_equal(const RankItems::Stated& a, const RankItems::Stated& b,
               const OpenedTraining& source) {
  if (first_difference(a.value, b.value)) return false;
  return std::ranges::equal(tensors_of_object(*a.document, a.value, a.place.pointer),
                            tensors_of_object(*b.document, b.value, b.place.pointer),
                            [&](const TensorEntry& one, const TensorEntry& other) {
                              return ckpt::same_bytes(one, source, other, source);
                            });
}

std::string text_of(const std::vector<uint64_t>& sizes) {
  constexpr size_t kShownMax = 16;
  std::string text;
  for (size_t i = 0; i < std::min(sizes.size(), kShownMax); ++i) {
    text += (text.empty() ? "[" : ", ") + std::to_string(sizes[i]);
  }
  return (text.empty() ? "[" : text) + (sizes.size() > kShownMax ? ", ...]" : "]");
}

const char* const kLayoutHint =
    "args (overlap_grad_reduce, ddp_bucket_size, ddp_num_buckets, sizes) may not be those of the "
    "run that wrote the folder, or some of its parameters are frozen";

[[noreturn]] void refuse_layout(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {".metadata", std::nullopt, key}, std::move(problem),
              kLayoutHint);
}

class BucketReader {
 public:
  BucketReader(const FlatBuckets& buckets, const FlatBuffers& buffers, const StoreInto& into)
      : copies_(buckets.copies()),
        optimizers_(buckets.optimizers()),
        buffers_(buffers),
        into_(into),
        states_(into.source, buffers, into.state),
        gathered_(into.state, states_),
        groups_(into.common, into.state),
        items_([&into](const auto& a, const auto& b) { return are_equal(a, b, into.source); }) {}

  void run() {
    for (const WorldRank& rank : ranks_of(into_.state.grid)) {
      for (const auto& [optimizer, filing] : optimizers_) read_copy(rank, optimizer);
    }
    for (const auto& [place, copy] : copies_) {
      if (seen_.contains(&copy)) continue;
      corrupt(copy.prefix, "is not of a model-parallel rank of the run that args describe");
    }
    states_.join();
    items_.settle(into_.common, into_.state);
  }

 private:
  // The first of the ranks that share a copy's buffers stands for all.
  void read_copy(const WorldRank& rank, uint32_t optimizer) {
    if (optimizer >= into_.state.chain.size()) return;  // an error of its own
    if (!buffers_.writes(optimizer, rank.at)) return;
    const uint32_t number = buffers_.copy_number(optimizer, rank.at);
    const auto found = copies_.find({optimizer, number});
    if (found == copies_.end()) {
      corrupt(copies_.lower_bound({optimizer, 0})->second.prefix,
              "there is nothing of model-parallel rank " + std::to_string(number) + " beside it");
    }
    const StoredCopy& copy = found->second;
    seen_.insert(&copy);
    const std::vector<FlatBuffer> buffers = buffers_.of(optimizer, rank.at);
    if (copy.objects.contains(kState)) {
      read_gathered(copy, buffers, rank.at);
    } else {
      require_layout(copy, buffers);
      for (uint32_t i = 0; i < buffers.size(); ++i) add_buffer(copy, i, buffers[i], rank.at);
    }
    read_groups(rank.rank, optimizer, copy, !buffers.empty());
  }

  // Of dp_zero_gather_scatter: all of it in an object.
  void read_gathered(const StoredCopy& copy, const std::vector<FlatBuffer>& buffers,
                     const RankCoordinates& rank) {
    if (!copy.buckets.empty()) {
      corrupt(copy.prefix, "has buckets beside an object that holds all of its state");
    }
    const Object object = read_object(copy, kState);
    const Place root{".metadata", object.key};
    const auto& tensors =
        tensors_.emplace_back(tensors_of_object(object.document, object.value, object.key));
    const auto tensor_at = [&tensors](const Place& place) -> const TensorEntry& {
      const auto found = std::ranges::find(tensors, place.pointer, &TensorEntry::key);
      if (found == tensors.end()) place.corrupt("is not a tensor");
      return *found;
    };
    gathered_.read({rank, object.value, root, tensor_at}, buffers);
  }

  void add_buffer(const StoredCopy& copy, uint32_t number, const FlatBuffer& buffer,
                  const RankCoordinates& rank) {
    for (size_t i = 0; i < buffer.held.size(); ++i) {
      const FlatPlace& place = buffer.layout.places[i];
      const FlatTensors& tensors = copy.buckets.at({number, place.bucket}).tensors;
      const uint64_t bucket_begin = buffer.layout.buckets[place.bucket].range.begin;
      states_.add(into_.state.model[buffer.held[i].entry].param,
                  {rank, tensors, place.range.begin - bucket_begin});
    }
  }

  void require_layout(const StoredCopy& copy, const std::vector<FlatBuffer>& buffers) {
    Sizes padded, unpadded;
    size_t bucket_count = 0;
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      padded.emplace_back();
      unpadded.emplace_back();
      for (const FlatBucket& bucket : buffers[i].layout.buckets) {
        padded[i].push_back(bucket.range.end - bucket.range.begin);
        unpadded[i].push_back(bucket.unpadded_count);
      }
      bucket_count += unpadded[i].size();
    }
    require_sizes(copy, kUnpaddedSizes, unpadded);
    require_sizes(copy, kSizes, padded);
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      const TrainedParam& first =
          into_.state.params[into_.state.model[buffers[i].held.front().entry].param];
      for (uint32_t bucket = 0; bucket < unpadded[i].size(); ++bucket) {
        const auto found = copy.buckets.find({i, bucket});
        if (found == copy.buckets.end()) {
          refuse_layout(copy.prefix, "has no bucket " + std::to_string(bucket) + " of buffer " +
                                         std::to_string(i));
        }
        require_bucket(found->second, unpadded[i][bucket], first.info.dtype);
      }
    }
    if (copy.buckets.size() == bucket_count) return;
    refuse_layout(copy.prefix, "has " + std::to_string(copy.buckets.size()) +
                                   " buckets, expected " + std::to_string(bucket_count));
  }

  static void require_bucket(const StoredBucket& bucket, uint64_t elements, DType dtype) {
    for (const auto& [state, tensor] : bucket.tensors) {
      const std::string& key = tensor.entry().key;
      if (!bucket.dtypes.starts_with("(torch." + std::string(ckpt::name(dtype)) + ", ")) {
        corrupt(key,
                "is not of the type of the model's weights, " + std::string(ckpt::name(dtype)));
      }
      if (tensor.element_count() == elements) continue;
      refuse_layout(key, "has " + std::to_string(tensor.element_count()) + " elements, expected " +
                             std::to_string(elements) +
                             " by the model's parameters in the order of the buffer");
    }
  }

  // [{(dtype, gradient's dtype): [elements of each bucket]}] of each buffer.
  using Sizes = std::vector<std::vector<uint64_t>>;
  void require_sizes(const StoredCopy& copy, std::string_view item, const Sizes& expected) {
    const Object object = read_object(copy, item);
    const Value& buffers = object.value;
    if (!buffers.is(Kind::List)) corrupt(object.key, "is not a list of buffers");
    if (buffers.size() != expected.size()) {
      refuse_layout(object.key, "is of " + std::to_string(buffers.size()) + " buffers, expected " +
                                    std::to_string(expected.size()));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool is_one = buffers[i].is(Kind::Dict) && buffers[i].item_count() == 1;
      const std::vector<uint64_t> stated =
          is_one ? sizes_in(buffers[i].item(0).second, object.key) : std::vector<uint64_t>();
      if (!is_one) corrupt(object.key, "a buffer is not a dict of one type of parameters");
      require_type(object.key, ckpt::key_text(buffers[i].item(0).first),
                   copy.buckets.find({static_cast<uint32_t>(i), 0}), copy);
      if (stated == expected[i]) continue;
      refuse_layout(object.key, "buffer " + std::to_string(i) + " has buckets of " +
                                    text_of(stated) + " elements, expected " +
                                    text_of(expected[i]));
    }
  }

  // `bucket`: the buffer's first one; that it is missing is told elsewhere.
  using BucketAt = std::map<std::pair<uint32_t, uint32_t>, StoredBucket>::const_iterator;
  static void require_type(const std::string& key, const std::string& type, BucketAt bucket,
                           const StoredCopy& copy) {
    if (bucket == copy.buckets.end() || bucket->second.dtypes == type) return;
    corrupt(key, "is of buffers of " + ckpt::escaped(type) + ", but the buckets are of " +
                     ckpt::escaped(bucket->second.dtypes));
  }

  static std::vector<uint64_t> sizes_in(const Value& list, const std::string& key) {
    if (!list.is(Kind::List)) corrupt(key, "the sizes of buckets are not a list");
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is(Kind::Int) || list[i].as_int() < 0) {
        corrupt(key, "the size of a bucket is not a number of elements");
      }
      sizes.push_back(static_cast<uint64_t>(list[i].as_int()));
    }
    return sizes;
  }

  struct Object {
    const std::string& key;
    const Document& document;  // until the common state is finished
    Value value;
  };
  Object read_object(const StoredCopy& copy, std::string_view item) {
    const auto found = copy.objects.find(item);
    if (found == copy.objects.end()) {
      corrupt(copy.prefix + "." + std::string(item) + "/shard_0_1", "is missing");
    }
    const ObjectEntry& entry = *found->second;
    const Document& document =
        into_.common.keep(std::make_shared<const Document>(into_.source.read_object(entry)));
    return {entry.key, document, only_object(document, entry.key)};
  }

  void read_groups(uint32_t rank, uint32_t optimizer, const StoredCopy& copy, bool is_stepped) {
    const Object inner = read_object(copy, kGroups);
    const Place place{".metadata", inner.key};
    require_state_in_buffers(inner.value, place);
    groups_.add_list(optimizer, into_.groups,
                     {list_member(inner.value, "param_groups", place), inner.document,
                      place / "param_groups", inner.key, is_stepped});
    for (size_t i = 0; i < inner.value.item_count(); ++i) {
      if (!inner.value.item(i).first.is(Kind::Str)) corrupt(inner.key, "a key is not a string");
    }
    items_.add({rank, optimizer, true, inner.document, inner.value, place},
               {"param_groups", "state"});
    for (const auto& [item, entry] : copy.objects) {
      if (item == kGroups || item == kState || item == kSizes || item == kUnpaddedSizes) continue;
      const Object object = read_object(copy, item);
      items_.add(optimizer, item,
                 {rank, &object.document, object.value, {".metadata", object.key}});
    }
  }

  const std::map<FlatBuckets::Place, StoredCopy>& copies_;
  std::map<uint32_t, const Filing*> optimizers_;
  const FlatBuffers& buffers_;
  const StoreInto& into_;
  FlatStates states_;
  GatheredBuffers gathered_;
  std::deque<std::vector<TensorEntry>> tensors_;  // in objects
  RankGroups groups_;
  std::set<const StoredCopy*> seen_;
  RankItems items_;
};

// Megatron's own layout of the buffers must give the sizes that are stated.
constexpr std::string_view kCoalesced = "buckets_coalesced", kUnpadded = "numel_unpadded";

constexpr const char* kGatheredHint =
    "args (overlap_grad_reduce, ddp_bucket_size, ddp_num_buckets, sizes) may not be those of the "
    "run that wrote the file, or some of its parameters are frozen";

}  // namespace

void FlatBuckets::read(const StoreInto& into) const {
  if (!into.state.unknown_order.empty()) {
    store_errors::unsupported(into.state.unknown_order,
                              "it is not known where the model registers it, which decides its "
                              "place in the flat buffers of the optimizer");
  }
  const Placement placement(into.state, into.state.grid);
  const Value args = attributes_of_args(into.stated.document->tree.root(), into.stated.file);
  const FlatArguments arguments = flat_arguments(args, into.stated.file);
  const FlatBuffers buffers(into.state, placement, into.groups, arguments);
  BucketReader(*this, buffers, into).run();
}

void GatheredBuffers::read(const Stored& stored, const std::vector<FlatBuffer>& buffers) {
  const auto coalesced = stored.value.is(Kind::Dict) ? stored.value.find(kCoalesced) : std::nullopt;
  if (!coalesced) stored.place.corrupt("is not the state of a DistributedOptimizer");
  if (!coalesced->is(Kind::Bool) || !coalesced->as_bool()) {
    (stored.place / kCoalesced)
        .unsupported("is not True: buckets in tensors of their own are not supported");
  }
  if (stored.value.item_count() != buffers.size() + 1) {
    stored.place.corrupt("holds " + std::to_string(stored.value.item_count() - 1) +
                             " buffers, expected " + std::to_string(buffers.size()) +
                             ", one for each model chunk with such parameters",
                         kMixedFilesHint);
  }
  for (size_t i = 0; i < buffers.size(); ++i) read_buffer(stored, i, buffers[i]);
}

void GatheredBuffers::read_buffer(const Stored& stored, size_t number, const FlatBuffer& buffer) {
  const Place place = stored.place / number;
  const auto value = stored.value.find(static_cast<int64_t>(number));
  if (!value || !value->is(Kind::Dict)) place.corrupt("this buffer is missing");
  if (value->item_count() != 1) {
    place.unsupported("holds buffers of " + std::to_string(value->item_count()) +
                      " types of parameters, expected one");
  }
  const auto [type, state] = value->item(0);
  const TrainedParam& first = state_.params[state_.model[buffer.held.front().entry].param];
  const std::string expected = "(torch." + std::string(ckpt::name(first.info.dtype)) + ", ";
  if (!ckpt::key_text(type).starts_with(expected)) {
    (place / ckpt::key_text(type))
        .corrupt("is not of the type of the model's weights, " +
                 std::string(ckpt::name(first.info.dtype)));
  }
  const FlatTensors& tensors =
      tensors_at(stored, place / ckpt::key_text(type), state, buffer.layout);
  for (size_t i = 0; i < buffer.held.size(); ++i) {
    states_.add(state_.model[buffer.held[i].entry].param,
                {stored.rank, tensors, buffer.layout.compact_begin(i)});
  }
}

const FlatTensors& GatheredBuffers::tensors_at(const Stored& stored, const Place& place,
                                               const Value& value, const FlatLayout& layout) {
  const uint64_t expected = layout.unpadded_count();
  const Value stated = member(value, kUnpadded, place);
  if (!stated.is(Kind::Int) || stated.as_int() < 0 ||
      static_cast<uint64_t>(stated.as_int()) != expected) {
    (place / kUnpadded)
        .corrupt("is " + ckpt::key_text(stated) + ", expected " + std::to_string(expected) +
                     " by the model's parameters in the order of the buffer",
                 kGatheredHint);
  }
  FlatTensors& tensors = tensors_.emplace_back();
  for (const auto& [key, state] : ckpt::items_of(value)) {
    if (!key.is(Kind::Str)) place.corrupt("the name of a state is not a string");
    if (key.text() == kUnpadded) continue;
    const Place own = place / key.text();
    const TensorEntry& tensor = stored.tensor_at(own);
    if (tensor.shape != Extents{expected}) {
      own.corrupt("does not have the " + std::to_string(expected) + " elements of its buffer",
                  kMixedFilesHint);
    }
    tensors.emplace(key.text(), FlatTensor(tensor));
  }
  if (tensors.empty()) place.corrupt("holds no state");
  return tensors;
}

}  // namespace optim
