// What StateCheck sees of tensors that are no optimizer state, or no run of bytes of their storage.
#include <algorithm>
#include <utility>

#include <ckpt/tensor_stream.h>

#include "model/tensor_names.h"
#include "state/not_checked.h"
#include "state/repeated_elements.h"
#include "state/unless_damaged.h"
#include "verify/state_check.h"

namespace optim {
namespace {

using ckpt::TensorEntry;

constexpr size_t kBlockBytes = size_t{1} << 20;

Wanted wanted_of(const TensorEntry& tensor) {
  return is_state(tensor) && is_second_moment(tensor) ? Wanted::FiniteAndNotNegative
                                                      : Wanted::Finite;
}

// What an optimizer of the common state counts, which the checks of groups tell.
bool is_common_step(const TensorEntry& tensor) {
  return tensor.file.ends_with("common.pt") && tensor.key.ends_with("/state/common_step");
}

std::tuple<uint32_t, uint64_t, uint64_t> place_in_file(const ckpt::Chunk& chunk) {
  return {chunk.region.file, chunk.region.bytes.offset_bytes, chunk.payload_offset_bytes};
}

}  // namespace

void StateCheck::list(const TensorEntry& tensor, const Weights& weights) {
  for (const ckpt::Chunk& chunk : tensor.chunks) {
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
