// Keys of flat buckets, taken apart.
#include <charconv>
#include <optional>

#include "layouts/filings/flat_buckets.h"
#include "layouts/parts/stacked_layers.h"
#include "layouts/parts/store_errors.h"
#include "model/tensor_names.h"

namespace optim {
namespace {

using ckpt::ObjectEntry;
using ckpt::TensorEntry;
using store_errors::corrupt;

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
