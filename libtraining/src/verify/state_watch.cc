#include "state/words.h"
#include "verify/state_check.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <span>

#include <ckpt/tensor_stream.h>
#include <training/key_kind.h>
#include <training/megatron_folders.h>

#include "model/tensor_names.h"
#include "state/not_checked.h"
#include "state/state_values.h"
#include "state/value_scan.h"

namespace optim {
namespace {

using ckpt::CheckKind;
using ckpt::Severity;

bool is_all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

constexpr size_t kStreamedBytes = size_t{1} << 20;

// --- which tensors are a model's or an optimizer's ---

// Parts of names of what training loops keep beside a model, and of single values.
constexpr std::string_view kOthers[] = {
    "callback",  "scheduler", "loop",   "loss", "score",  "metric",  "history", "sampler", "loader",
    "hyper_par", "hparams",   "config", "args", "scaler", "tracker", "logger",  "progress"};
constexpr std::string_view kOtherValues[] = {"best", "epoch", "step", "time", "stat"};
// A mapping with one of these in its name is a model's all the same: "best_model".
constexpr std::string_view kModelWords[] = {"model", "state_dict", "weight",
                                            "net",   "module",     "param"};
// Of keys whose steps are joined by dots, where a module may be called nearly anything.
constexpr std::string_view kOtherSteps[] = {
    "callbacks", "lr_schedulers", "lr_scheduler", "scheduler", "schedulers",
    "loops",     "metrics",       "best_score",   "best_loss", "best_metric"};
constexpr std::string_view kModelSteps[] = {"model", "models", "module", "state_dict",
                                            "model_state_dict"};

template <class Words>
bool has_any(std::string_view step, const Words& words) {
  std::string text(step);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(words,
                             [&](std::string_view word) { return text.find(word) != text.npos; });
}

// The first step, and whether it is the last.
struct FirstStep {
  std::string_view text;
  bool is_last;
};

FirstStep first_step(std::string_view key) {
  const bool is_pointer = key.starts_with('/');
  if (is_pointer) key.remove_prefix(1);
  const size_t end = key.find_first_of(is_pointer ? "/" : "./");
  return {key.substr(0, end), end == key.npos};
}

// --- what is not finite in them ---

// How many elements are zero, infinite of either sign, and none of these.
struct Kinds {
  uint64_t zeros = 0, above = 0, below = 0, others = 0;
};

template <class Word>
void count_kinds(std::span<const std::byte> bytes, Word infinite, Kinds& kinds) {
  constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    const auto magnitude = static_cast<Word>(word & ~kSign);
    if (magnitude == 0) {
      ++kinds.zeros;
    } else if (magnitude == infinite) {
      ++(word == magnitude ? kinds.above : kinds.below);
    } else {
      ++kinds.others;
    }
  }
}

Kinds kinds_of(const TensorEntry& tensor, const OpenedTraining& checkpoint) {
  ckpt::TensorStream stream(tensor, checkpoint);
  std::vector<std::byte> buffer(kStreamedBytes);
  Kinds kinds;
  while (stream.left_bytes() > 0 && kinds.others == 0) {
    const auto piece = std::span(buffer).first(std::min(kStreamedBytes, stream.left_bytes()));
    stream.read(piece);
    switch (tensor.dtype) {
      case DType::Float64: count_kinds<uint64_t>(piece, 0x7FF0000000000000, kinds); break;
      case DType::Float32: count_kinds<uint32_t>(piece, 0x7F800000, kinds); break;
      case DType::BFloat16: count_kinds<uint16_t>(piece, 0x7F80, kinds); break;
      case DType::Float16: count_kinds<uint16_t>(piece, 0x7C00, kinds); break;
      default: ++kinds.others;
    }
  }
  return kinds;
}

bool is_named_mask(std::string_view key) {
  const std::string_view last = key.substr(key.find_last_of("./") + 1);
  return last.find("mask") != last.npos;
}

bool is_square(const Extents& shape) {
  const size_t dims = shape.size();
  return dims >= 2 && shape[dims - 1] == shape[dims - 2] && shape[dims - 1] > 1;
}

}  // namespace

bool StateWatch::is_zero(const ckpt::StorageRegion& region) const {
  const WatchedRanges<size_t>* const found = ranges_.find(region);
  return found != nullptr && std::ranges::all_of(found->all(), [&](const auto& range) {
           return is_seen(range.of) && watched_[range.of].is_zero;
         });
}

std::optional<size_t> StateWatch::add(const Chunk& chunk, DType dtype, Wanted wanted,
                                      SummedAs summed_as) {
  const uint64_t count_bytes =
      ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(dtype);
  const uint64_t begin_bytes = chunk.payload_offset_bytes;
  const bool is_inside = chunk.region.wrapping != ckpt::Wrapping::None ||
                         begin_bytes + count_bytes <= chunk.region.bytes.count_bytes;
  if (chunk.view || !is_inside || !is_scanned(dtype)) return std::nullopt;
  if (begin_bytes % ckpt::bytes_per_element(dtype) != 0) return std::nullopt;
  const uint64_t pair_bytes = kWeightsPerPair * ckpt::bytes_per_element(dtype);
  if (summed_as && begin_bytes % pair_bytes != 0) return std::nullopt;
  const Place place{chunk.region.file, chunk.region.bytes.offset_bytes};
  const Range range{begin_bytes, count_bytes, dtype};
  const auto [known, is_new] = known_.try_emplace({place, range}, watched_.size());
  if (is_new) {
    ranges_.add(chunk, count_bytes, known->second);
    watched_.push_back({.dtype = dtype, .begin_bytes = begin_bytes, .count_bytes = count_bytes});
  }
  Watched& watched = watched_[known->second];
  if (summed_as && watched.summed_as && watched.summed_as != summed_as) return std::nullopt;
  watched.wanted = std::max(watched.wanted, wanted);
  if (summed_as) watched.summed_as = summed_as;
  return known->second;
}

void StateWatch::see(const ckpt::StoragePiece& piece) {
  ranges_.for_parts(piece, [&](const auto& range, uint64_t begin_bytes, auto bytes) {
    const bool fits = range.begin_bytes + range.count_bytes <= piece.storage.count_bytes;
    if (fits) see(watched_[range.of], begin_bytes, bytes);
  });
}

// Pieces of a storage are cut at whole pairs of words.
void StateWatch::see(Watched& watched, uint64_t begin_bytes, std::span<const std::byte> bytes) {
  const uint64_t first =
      (begin_bytes - watched.begin_bytes) / ckpt::bytes_per_element(watched.dtype);
  const ValueScan values = scan(watched.dtype, bytes, watched.wanted);
  uint64_t sum = 0;
  if (watched.summed_as) {
    sum = watched.dtype == DType::Float32 ? sum_of_masters(bytes, first, *watched.summed_as)
                                          : sum_of_weights(bytes, first, watched.dtype);
  }
  const bool is_zero = is_all_zero(bytes);  // stops at the first that is not
  const std::scoped_lock lock(mutex_);
  watched.is_zero = watched.is_zero && is_zero;
  watched.values.add(values, first);
  watched.weight_sum += sum;
  watched.seen_bytes += bytes.size();
}

void NonfiniteValues::see(const TensorEntry& tensor) {
  const FirstStep first = first_step(tensor.key);
  const bool is_optimizers = kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState;
  has_optimizer_ = has_optimizer_ || is_optimizers;
  has_loop_ = has_loop_ || is_optimizers || (!first.is_last && is_word_of(first.text, kModelSteps));
}

bool NonfiniteValues::is_trained(const TensorEntry& tensor) const {
  switch (kind_of_key(tensor.file, tensor.key)) {
    case KeyKind::OptimizerState: return true;
    case KeyKind::RngState:
    case KeyKind::CommonState: return false;
    case KeyKind::Model:
    case KeyKind::Average:
    case KeyKind::Progress: break;
  }
  const FirstStep first = first_step(tensor.key);
  if (!tensor.key.starts_with('/')) {
    return !has_optimizer_ || !is_word_of(first.text, kOtherSteps);
  }
  if (!has_loop_) return true;
  if (first.is_last) {
    return ckpt::element_count(tensor.shape) != 1 && !has_any(first.text, kOthers) &&
           !has_any(first.text, kOtherValues);
  }
  return has_any(first.text, kModelWords) || !has_any(first.text, kOthers);
}

ObjectTensors tensors_in_objects(const OpenedTraining& checkpoint) {
  ObjectTensors found;
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (catalog.format != ckpt::Format::TorchDist || is_megatron(checkpoint)) return found;
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    unless_damaged([&] {
      const Document document = checkpoint.read_object(object);
      for (auto& tensor : tensors_of_object(document, document.tree.root(), object.key)) {
        if (!is_scanned(tensor.dtype)) continue;
        for (const Chunk& chunk : tensor.chunks) {
          if (chunk.region.file < catalog.files.size()) continue;
          found.compressed.emplace(chunk.region.file, *object.region);
        }
        found.tensors.push_back(std::move(tensor));
      }
    });
  }
  return found;
}

ckpt::Where place_of(const OpenedTraining& checkpoint, const TensorEntry& tensor,
                     const Chunk& chunk) {
  const bool is_bare = chunk.region.wrapping == ckpt::Wrapping::None && !chunk.view;
  const uint64_t offset_bytes =
      chunk.region.bytes.offset_bytes + (is_bare ? chunk.payload_offset_bytes : 0);
  return {checkpoint.file_name(chunk.region.file), offset_bytes, tensor.key};
}

TensorEntry chunk_alone(const TensorEntry& tensor, Chunk chunk) {
  chunk.box = ckpt::whole(chunk.box.sizes);
  const Extents shape = chunk.box.sizes;
  return {tensor.file, tensor.key, tensor.dtype, shape, {std::move(chunk)}};
}

std::string text_of(const Unwanted& unwanted, std::string_view what) {
  const bool is_one = unwanted.count == 1;
  return std::to_string(unwanted.count) + (is_one ? " value is " : " values are ") +
         std::string(what) + (is_one ? ", at index " : ", the first at index ") +
         std::to_string(unwanted.first);
}

NonfiniteValues::NonfiniteValues(const OpenedTraining& checkpoint,
                                 const std::vector<std::string>& allowed,
                                 const std::deque<TensorEntry>& more, VerifyReport& report)
    : checkpoint_(checkpoint),
      report_(report),
      may_allow_(!allowed.empty()),
      allowed_(allowed, {}) {
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) see(tensor);
  for (const TensorEntry& tensor : more) see(tensor);
  if (!may_allow_) return;
  std::vector<ckpt::KeyName> names = names_in(checkpoint.catalog());
  for (const TensorEntry& tensor : more) names.push_back({tensor.file, tensor.key});
  allowed_.resolve(names);
  for (const std::string& glob : allowed_.unmatched()) {
    report_.find({.file = checkpoint.shown_path(), .key = {}},
                 "no key matches '" + ckpt::escaped(glob) + "' of --allow-nonfinite", {},
                 Severity::Note);
  }
}

bool NonfiniteValues::tell(const TensorEntry& tensor, const ckpt::Where& place,
                           const ValueScan& values) {
  if (values.nan.count == 0 && values.infinite.count == 0) return true;
  if (may_allow_ && allowed_.accepts(tensor.file, tensor.key)) {
    report_.allowed_value_count += values.nan.count + values.infinite.count;
    if (allowed_tensors_.emplace(tensor.file, tensor.key).second) ++report_.allowed_tensor_count;
    return true;
  }
  ckpt::Finding finding{CheckKind::Meaning, Severity::Damage, place, {}, {}};
  if (!is_trained(tensor)) {
    finding.severity = Severity::Note;
    finding.hint = "neither a model's nor an optimizer's tensor";
  } else if (values.nan.count == 0 && is_mask(tensor)) {
    finding.severity = Severity::Note;
    finding.hint = "a mask: infinities of one sign, and zeros";
  }
  const auto add = [&](const Unwanted& unwanted, std::string_view what) {
    if (unwanted.count == 0) return;
    finding.problem = text_of(unwanted, what);
    report_.findings.findings.push_back(finding);
  };
  add(values.nan, "NaN");
  add(values.infinite, "infinite");
  return finding.severity == Severity::Note;
}

// A buffer that no step changes: infinities of one sign beside zeros, called a mask, or as long as
// wide with a quarter of them or more.
bool NonfiniteValues::is_mask(const TensorEntry& tensor) const {
  if (kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState) return false;
  const bool is_named = is_named_mask(tensor.key);
  if (!is_named && !is_square(tensor.shape)) return false;
  const auto kinds = unless_damaged([&] { return kinds_of(tensor, checkpoint_); });
  if (!kinds) return false;
  const uint64_t infinite = kinds->above + kinds->below;
  const bool is_of_one_sign = kinds->above == 0 || kinds->below == 0;
  return kinds->others == 0 && is_of_one_sign && (is_named || infinite >= kinds->zeros / 3);
}

}  // namespace optim
