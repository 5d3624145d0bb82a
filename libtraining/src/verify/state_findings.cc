// What StateCheck finds in values that it has seen.
#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <ckpt/tensor_stream.h>

#include "grid/whole_states.h"
#include "issues/issue.h"
#include "issues/shifted_state.h"
#include "model/tensor_names.h"
#include "state/not_checked.h"
#include "state/read_range.h"
#include "state/remainders.h"
#include "state/words.h"
#include "verify/checks.h"
#include "verify/state_check.h"

namespace optim {
namespace {

constexpr size_t kPieceElements = size_t{1} << 18;

// Of an optimizer of the chain.
bool has_experts_alone(const TrainingState& state, uint32_t optimizer) {
  return std::ranges::all_of(state.params, [&](const TrainedParam& param) {
    return param.optimizer != optimizer || param.states.empty() ||
           expert_in(param.info.name).has_value();
  });
}

constexpr size_t kBlockBytes = size_t{1} << 20;

Wanted wanted_of(const TensorEntry& tensor) {
  return is_state(tensor) && is_second_moment(tensor) ? Wanted::FiniteAndNotNegative
                                                      : Wanted::Finite;
}

// What an optimizer of the common state counts, which the checks of groups tell.
bool is_common_step(const TensorEntry& tensor) {
  return tensor.file.ends_with("common.pt") && tensor.key.ends_with("/state/common_step");
}

std::tuple<uint32_t, uint64_t, uint64_t> place_in_file(const Chunk& chunk) {
  return {chunk.region.file, chunk.region.bytes.offset_bytes, chunk.payload_offset_bytes};
}

}  // namespace

Unwanted count_mismatches(const TensorEntry& master, const OpenedTraining& source,
                          const TensorEntry& weight, const OpenedTraining& of_weight) {
  const auto rounds_to = weight.dtype == DType::BFloat16 ? rounds_to_bfloat16 : rounds_to_float16;
  const size_t words = is_own_master(weight.dtype) ? 2 : 1;  // of 16 bits in an element
  std::vector<float> masters(kPieceElements);
  std::vector<uint16_t> weights(words * kPieceElements);
  const auto are_equal = [&](size_t i) {
    return words == 1 ? rounds_to(masters[i], weights[i])
                      : std::memcmp(&masters[i], &weights[2 * i], sizeof(float)) == 0;
  };
  ckpt::TensorStream master_stream(master, source), weight_stream(weight, of_weight);
  Unwanted result;
  uint64_t position = 0;
  while (weight_stream.left_bytes() > 0) {
    const size_t left = weight_stream.left_bytes() / sizeof(uint16_t) / words;
    const size_t count = std::min(kPieceElements, left);
    master_stream.read(std::as_writable_bytes(std::span(masters).first(count)));
    weight_stream.read(std::as_writable_bytes(std::span(weights).first(words * count)));
    for (size_t i = 0; i < count; ++i) {
      if (are_equal(i)) continue;
      if (result.count++ == 0) result.first = position + i;
    }
    position += count;
  }
  return result;
}

std::string text_of_mismatch(const Unwanted& mismatch, uint64_t count) {
  return std::to_string(mismatch.count) + " of " + std::to_string(count) +
         " elements differ from the rounded fp32 master, the first at index " +
         std::to_string(mismatch.first);
}

bool StateCheck::look_at_values(const Scanned& scanned, const ValueScan& values) {
  const TensorEntry& tensor = *scanned.tensor;
  const Chunk& chunk = *scanned.chunk;
  const bool may_be_negative = !is_second_moment(tensor);
  const bool is_sound = values.nan.count == 0 && values.infinite.count == 0 &&
                        values.not_remainder.count == 0 &&
                        (may_be_negative || values.negative.count == 0);
  if (is_sound) return true;
  if (has_wrong_checksum(tensor, chunk)) return false;
  const auto find_if_any = [&](const Unwanted& unwanted, std::string_view what) {
    if (unwanted.count != 0) find(tensor, chunk, text_of(unwanted, what));
    return unwanted.count == 0;
  };
  const ckpt::Where place =
      place_of(checkpoint_, scanned.weight != nullptr ? *scanned.weight : tensor, chunk);
  bool may_pass =
      find_if_any(values.not_remainder, "no integer of 16 bits, as the remainders of masters are");
  may_pass = nonfinite_.tell(tensor, place, values) && may_pass;
  const bool are_finite = values.nan.count == 0 && values.infinite.count == 0;
  if (are_finite && !may_be_negative) {
    may_pass =
        find_if_any(values.negative, "negative, which a second moment cannot be") && may_pass;
  }
  return may_pass;
}

bool StateCheck::has_wrong_checksum(const TensorEntry& tensor, const Chunk& chunk) const {
  // Or it cannot be read, which is a finding, too.
  return !unless_damaged([&] { checkpoint_.check_crc(chunk_alone(tensor, chunk)); });
}

void StateCheck::refuse(const Pair& pair) {
  const bool is_chunk = pair.numbers.has_value();
  const auto mismatch = unless_damaged([&] {
    return is_chunk ? count_mismatches(chunk_alone(*pair.master, *pair.master_chunk), checkpoint_,
                                       chunk_alone(*pair.weight, *pair.weight_chunk), checkpoint_)
                    : count_mismatches(*pair.master, checkpoint_, *pair.weight, checkpoint_);
  });
  if (!mismatch) return;
  if (mismatch->count == 0) {
    ++report_.matching_master_count;
    return;
  }
  if (has_wrong_checksum(*pair.master, *pair.master_chunk) ||
      has_wrong_checksum(*pair.weight, *pair.weight_chunk)) {
    return;
  }
  if (other_rounding_) return differing_.add(pair.weight->key, *other_rounding_);
  mismatched_.insert(pair.master->key);
  const auto owner = writer_of(checkpoint_.file_name(pair.master_chunk->region.file));
  const auto holder = writer_of(checkpoint_.file_name(pair.weight_chunk->region.file));
  std::string hint =
      "master and weight may come from different iterations or parameters, or one was overwritten";
  const bool is_owned_by_writer = !state_ || !state_->filed.is_zero1();
  if (pair.master->key.starts_with("optimizer.state.param.")) {
    hint += "; " + std::string(kBucketShiftWriters);
  }
  if (is_owned_by_writer && owner && holder && *owner != *holder) {
    hint = "rank " + std::to_string(*holder) + " wrote the weight, rank " + std::to_string(*owner) +
           " owns it: the weight may not have been gathered after the last step";
  }
  const uint64_t count =
      ckpt::element_count(is_chunk ? pair.weight_chunk->box.sizes : pair.weight->shape);
  find(*pair.weight, *pair.weight_chunk, text_of_mismatch(*mismatch, count), std::move(hint));
}

// After a step a gradient of 0 for every element of every parameter is not training. A state of one
// parameter may be: no token has reached an expert. Only where this process has seen all of it.
void StateCheck::look_for_zero_moments() {
  if (!state_) return;
  struct Seen {
    const TensorEntry* first = nullptr;
    const Chunk* chunk = nullptr;
    const Chunk* last = nullptr;  // whose storage was looked at: a flat buffer has 10^5
    bool may_be_zero = true;
  };
  const auto share_storage = [](const Chunk& a, const Chunk& b) {
    return a.region.file == b.region.file && a.region.bytes == b.region.bytes;
  };
  std::map<std::pair<uint32_t, std::string>, Seen> kinds;
  for (const TrainedParam& param : state_->params) {
    for (const StateTensor& state : param.states) {
      if (!state.name.starts_with("exp_avg")) continue;
      Seen& seen = kinds[{param.optimizer, state.name}];
      for (const Chunk& chunk : state.value->chunks) {
        if (!seen.may_be_zero) break;
        if (seen.last != nullptr && share_storage(*seen.last, chunk)) continue;
        seen.last = &chunk;
        seen.may_be_zero = watch_.is_zero(chunk.region);
        if (seen.first == nullptr) seen.first = state.value.get(), seen.chunk = &chunk;
      }
    }
  }
  const auto is_zero = [](const auto& kind) {
    return kind.second.first != nullptr && kind.second.may_be_zero;
  };
  for (const auto& [kind, seen] : kinds) {
    const auto step = step_of(*state_, kind.first);
    if (!is_zero(std::pair(kind, seen)) || !step || *step <= 0) continue;
    const bool are_all_zero = std::ranges::all_of(kinds, [&](const auto& other) {
      return other.first.first != kind.first || is_zero(other);
    });
    if (are_all_zero && has_experts_alone(*state_, kind.first)) {
      report_.not_proven.push_back(
          {"'" + kind.second + "' of the experts' optimizer",
           "each is 0: no token has reached an expert, or the moments were lost"});
      continue;
    }
    find(*seen.first, *seen.chunk,
         "every '" + kind.second + "' of this optimizer is 0, but it has taken " +
             std::to_string(static_cast<int64_t>(*step)) + " steps",
         "the moments were lost; training would go on as from a fresh optimizer");
  }
}

void StateCheck::look_for_known_issues() {
  if (!state_) return;
  const SeenValues seen{*state_, checkpoint_, !mismatched_.empty(),
                        [this](const Chunk& chunk) { return is_own(chunk); },
                        [this](const TensorEntry& tensor, const Chunk& chunk) {
                          return place_of(checkpoint_, tensor, chunk);
                        }};
  for (const Issue* const issue : known_issues()) {
    if (issue->report_values != nullptr) issue->report_values(seen, report_);
  }
}

// Several tensors may lie in one storage: each is told at its own place.
void StateCheck::find(const TensorEntry& tensor, const Chunk& chunk, std::string problem,
                      std::string hint) {
  report_.find(place_of(checkpoint_, tensor, chunk), std::move(problem), std::move(hint));
}

// What StateCheck sees of tensors that are no optimizer state, or no run of bytes of their storage.
void StateCheck::list(const TensorEntry& tensor, const Weights& weights) {
  for (const Chunk& chunk : tensor.chunks) {
    const auto number = watch_.add(chunk, tensor.dtype, wanted_of(tensor));
    const auto weight = weights.find(place_in_file(chunk));
    const TensorEntry* const named = weight == weights.end() ? nullptr : weight->second;
    scanned_.push_back({&tensor, &chunk, number, is_state(tensor), named});
  }
}

// Weights, buffers, and what lies beside a model. Not flat buffers, whose gaps nobody wrote.
void StateCheck::list_others() {
  Weights weights;
  for (const Pair& pair : pairs_) weights.emplace(place_in_file(*pair.weight_chunk), pair.weight);
  uint64_t repeated_count = 0;
  for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
    const bool is_looked_at = is_state(tensor) || is_flat_buffer(tensor) ||
                              is_coalesced_buffer(tensor) || !is_scanned(tensor.dtype);
    if (is_looked_at || is_common_step(tensor)) continue;
    repeats_much(tensor) ? void(++repeated_count) : list(tensor, weights);
  }
  if (repeated_count == 0) return;
  report_.not_checked.push_back({"the values of " + counted(repeated_count, "tensor"),
                                 "a small storage that is repeated to more than a gigabyte"});
}

// nullopt where it cannot be read, which is a finding.
std::optional<ValueScan> StateCheck::read_values(const Scanned& scanned) const {
  const uint64_t element_bytes = ckpt::bytes_per_element(scanned.tensor->dtype);
  const Wanted wanted =
      scanned.number ? watch_[*scanned.number].wanted : wanted_of(*scanned.tensor);
  return unless_damaged([&] {
    ValueScan values;
    ckpt::TensorStream stream(chunk_alone(*scanned.tensor, *scanned.chunk), checkpoint_);
    std::vector<std::byte> buffer(std::min<uint64_t>(kBlockBytes, stream.left_bytes()));
    for (uint64_t first = 0; stream.left_bytes() > 0; first += buffer.size() / element_bytes) {
      const auto piece = std::span(buffer).first(std::min(buffer.size(), stream.left_bytes()));
      stream.read(piece);
      values.add(scan(scanned.tensor->dtype, piece, wanted), first);
    }
    return values;
  });
}

void StateCheck::look_at(const Scanned& scanned) {
  const bool is_seen = scanned.number && watch_.is_seen(*scanned.number);
  const auto values = is_seen ? watch_[*scanned.number].values : read_values(scanned);
  if (!values) return;
  const bool is_sound = look_at_values(scanned, *values);
  if (scanned.weight != nullptr) return;  // counted with its master
  ++(scanned.is_state ? report_.state_count : report_.tensor_count);
  (scanned.is_state ? report_.sound_state_count : report_.sound_tensor_count) += is_sound ? 1 : 0;
}

// Reads a weight that another process looks at.
void StateCheck::see_weight(const Pair& pair) {
  if (watch_.is_seen(pair.numbers->second)) return;
  const ckpt::StorageRegion& region = pair.weight_chunk->region;
  unless_damaged([&] {
    const ckpt::StorageRegion located = checkpoint_.locate(region);
    std::vector<std::byte> buffer(std::min(kBlockBytes, located.bytes.count_bytes));
    for (uint64_t offset = 0; offset < located.bytes.count_bytes; offset += buffer.size()) {
      const auto piece = std::span(buffer).first(
          std::min<uint64_t>(buffer.size(), located.bytes.count_bytes - offset));
      checkpoint_.read_bytes(located, offset, piece);
      watch_.see({region.file, region.bytes, located.bytes, offset, piece});
    }
  });
}

}  // namespace optim
