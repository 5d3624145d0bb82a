#include "state/passing_proof.h"

#include <algorithm>


namespace optim {
namespace {

using ckpt::DType;
using ckpt::TensorEntry;

// The whole of one storage, as it lies in its file.
bool is_whole_storage(const TensorEntry& tensor) {
  if (tensor.chunks.size() != 1) return false;
  const ckpt::Chunk& chunk = tensor.chunks[0];
  return chunk.region.wrapping == ckpt::Wrapping::None && !chunk.view &&
         chunk.payload_offset_bytes == 0 &&
         chunk.region.bytes.count_bytes == ckpt::count_bytes(tensor);
}

}  // namespace

PassingProof::PassingProof(const TrainingState& view, const ckpt::Checkpoint& source)
    : view_(view), source_(source), params_(view.params.size()) {
  for (size_t i = 0; i < params_.size(); ++i) {
    const TensorEntry& weight = *view.params[i].weight;
    const TensorEntry& master = *view.params[i].master;
    const bool is_plain = weight.dtype == DType::BFloat16 && master.dtype == DType::Float32 &&
                          weight.shape == master.shape && is_whole_storage(weight) &&
                          is_whole_storage(master);
    if (!is_plain) continue;
    params_[i].is_watched = true;
    add_place(weight, {i, false});
    add_place(master, {i, true});
  }
}

// A storage that two tensors share proves neither.
void PassingProof::add_place(const TensorEntry& entry, Place place) {
  Param& param = params_[place.param];
  Tensor& tensor = place.is_master ? param.master : param.weight;
  tensor.element_bytes = place.is_master ? sizeof(float) : sizeof(uint16_t);
  tensor.count_bytes = ckpt::count_bytes(entry);
  const ckpt::StorageRegion& region = entry.chunks[0].region;
  const auto [known, added] = places_.try_emplace({region.file, region.bytes.offset_bytes}, place);
  if (added) return;
  params_[known->second.param].is_watched = false;
  param.is_watched = false;
}

void PassingProof::note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                        std::span<const std::byte> bytes) {
  const auto found = places_.find({located.file, located.bytes.offset_bytes});
  if (found == places_.end()) return;
  const auto [index, is_master] = found->second;
  Param& param = params_[index];
  Tensor& tensor = is_master ? param.master : param.weight;
  if (!param.is_watched || located.bytes.count_bytes != tensor.count_bytes) return;
  const uint64_t pair_bytes = tensor.pair_bytes(), end = offset_bytes + bytes.size();
  const uint64_t whole = std::min(end, (offset_bytes + pair_bytes - 1) / pair_bytes * pair_bytes);
  const uint64_t last =
      end == tensor.count_bytes ? end : std::max(whole, end / pair_bytes * pair_bytes);
  keep(tensor, offset_bytes, bytes.first(whole - offset_bytes));
  add(tensor, whole, bytes.subspan(whole - offset_bytes, last - whole));
  keep(tensor, last, bytes.subspan(last - offset_bytes));
  if (!param.has_passed() || param.weight.sum == param.master.sum) return;
  refuse_master(source_, view_.params[index]);
}

void PassingProof::add(Tensor& tensor, uint64_t offset_bytes, std::span<const std::byte> part) {
  const uint64_t first = offset_bytes / tensor.element_bytes;
  const bool is_master = tensor.element_bytes == sizeof(float);
  tensor.sum += is_master ? sum_of_masters(part, first) : sum_of_weights(part, first);
  tensor.summed_bytes += part.size();  // after the sum: who sees all bytes summed sees their sum
}

void PassingProof::keep(Tensor& tensor, uint64_t offset_bytes, std::span<const std::byte> part) {
  if (part.empty()) return;
  const uint64_t pair = offset_bytes / tensor.pair_bytes(), start = pair * tensor.pair_bytes();
  const uint64_t whole_bytes = std::min(tensor.pair_bytes(), tensor.count_bytes - start);
  const std::scoped_lock lock(mutex_);
  const auto kept = pieces_.try_emplace({&tensor, pair}).first;
  Piece& piece = kept->second;
  std::ranges::copy(part, piece.bytes.begin() + static_cast<ptrdiff_t>(offset_bytes - start));
  piece.count_bytes += part.size();
  if (piece.count_bytes < whole_bytes) return;
  add(tensor, start, std::span(piece.bytes).first(whole_bytes));
  pieces_.erase(kept);
}

std::optional<uint64_t> PassingProof::proven(size_t param) const {
  const Param& known = params_[param];
  if (!known.is_watched || !known.has_passed() || known.weight.sum != known.master.sum) {
    return std::nullopt;
  }
  return known.weight.sum;
}

}  // namespace optim
