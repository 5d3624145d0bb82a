// Sums of weights and of rounded masters, while both are copied.
#include "state/passing_proof.h"

#include <algorithm>

namespace optim {
namespace {

using ckpt::DType;
using ckpt::TensorEntry;

// What is summed here: 16-bit weights with fp32 masters.
bool is_summed(const TrainedParam& param) {
  if (!param.master || param.master->dtype != DType::Float32 || param.weight->cast) return false;
  const DType weights = param.weight->dtype;
  return (weights == DType::BFloat16 || weights == DType::Float16) &&
         param.weight->shape == param.master->shape;
}

bool is_plain(const RunOfBox& run) {
  return !run.chunk->view && run.chunk->region.wrapping != ckpt::Wrapping::ZstdTorchSave;
}

}  // namespace

PassingProof::PassingProof(const FiledState& state, const ckpt::Checkpoint& source)
    : state_(state), source_(source), of_param_(state.params.size()) {
  for (size_t i = 0; i < state.params.size(); ++i) {
    if (is_summed(state.params[i])) watch(i);
  }
  for (auto& [key, storage] : storages_) storage.watched.put_in_order();
}

// Chunks that are views with strides are left to prove_rest().
void PassingProof::watch(size_t param) {
  const TrainedParam& of = state_.params[param];
  const auto boxes = compared_boxes(of);
  const bool are_plain = boxes && std::ranges::all_of(*boxes, [](const ComparedBox& box) {
                           return std::ranges::all_of(box.weights, is_plain) &&
                                  std::ranges::all_of(box.masters, is_plain);
                         });
  if (!are_plain) return;
  for (const ComparedBox& box : *boxes) {
    Compared& compared = compared_.emplace_back();
    compared.param = param;
    compared.weight.compared = compared.master.compared = &compared;
    add_side(compared.weight, of.weight->dtype, box.weights);
    add_side(compared.master, DType::Float32, box.masters);
    of_param_[param].push_back(&compared);
  }
}

void PassingProof::add_side(Side& side, DType dtype, const std::vector<RunOfBox>& runs) {
  side.element_bytes = ckpt::bytes_per_element(dtype);
  for (const RunOfBox& run : runs) {
    const ckpt::StorageRegion& region = run.chunk->region;
    const uint64_t count_bytes = ckpt::element_count(run.chunk->box.sizes) * side.element_bytes;
    Storage& storage = storages_[{region.file, region.bytes.offset_bytes}];
    storage.end_bytes = region.bytes.end_bytes();
    storage.watched.add({run.chunk->payload_offset_bytes, count_bytes,
                         PartOfSide{&side, run.first * side.element_bytes}});
    side.count_bytes += count_bytes;
  }
}

// A located payload lies within the region that the catalog has.
const PassingProof::Storage* PassingProof::storage_at(const ckpt::StorageRegion& located) const {
  auto found = storages_.upper_bound({located.file, located.bytes.offset_bytes});
  if (found == storages_.begin()) return nullptr;
  --found;
  const bool is_inside =
      found->first.first == located.file && located.bytes.end_bytes() <= found->second.end_bytes;
  return is_inside ? &found->second : nullptr;
}

void PassingProof::note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                        std::span<const std::byte> bytes) {
  const Storage* const storage = storage_at(located);
  if (storage == nullptr) return;
  storage->watched.for_parts(
      offset_bytes, offset_bytes + bytes.size(),
      [&](const auto& range, uint64_t begin_bytes, uint64_t end_bytes) {
        note_part(*range.of.side, range.of.offset_bytes + (begin_bytes - range.begin_bytes),
                  bytes.subspan(begin_bytes - offset_bytes, end_bytes - begin_bytes));
      });
}

void PassingProof::note_part(Side& side, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  const uint64_t pair_bytes = side.pair_bytes(), end = offset_bytes + bytes.size();
  const uint64_t whole = std::min(end, (offset_bytes + pair_bytes - 1) / pair_bytes * pair_bytes);
  const uint64_t last =
      end == side.count_bytes ? end : std::max(whole, end / pair_bytes * pair_bytes);
  keep(side, offset_bytes, bytes.first(whole - offset_bytes));
  add(side, whole, bytes.subspan(whole - offset_bytes, last - whole));
  keep(side, last, bytes.subspan(last - offset_bytes));
  const Compared& compared = *side.compared;
  if (!compared.has_passed() || compared.is_equal()) return;
  refuse_master(source_, state_.params[compared.param]);
}

void PassingProof::add(Side& side, uint64_t offset_bytes, std::span<const std::byte> part) const {
  const DType weights = state_.params[side.compared->param].weight->dtype;
  const bool is_master = &side == &side.compared->master;
  const uint64_t first = offset_bytes / side.element_bytes;
  side.sum +=
      is_master ? sum_of_masters(part, first, weights) : sum_of_weights(part, first, weights);
  side.summed_bytes += part.size();  // after the sum: who sees all bytes summed sees their sum
}

void PassingProof::keep(Side& side, uint64_t offset_bytes, std::span<const std::byte> part) {
  if (part.empty()) return;
  const uint64_t pair = offset_bytes / side.pair_bytes(), start = pair * side.pair_bytes();
  const uint64_t whole_bytes = std::min(side.pair_bytes(), side.count_bytes - start);
  const std::scoped_lock lock(mutex_);
  const auto kept = pieces_.try_emplace({&side, pair}).first;
  Piece& piece = kept->second;
  std::ranges::copy(part, piece.bytes.begin() + static_cast<ptrdiff_t>(offset_bytes - start));
  piece.count_bytes += part.size();
  if (piece.count_bytes < whole_bytes) return;
  add(side, start, std::span(piece.bytes).first(whole_bytes));
  pieces_.erase(kept);
}

std::optional<uint64_t> PassingProof::proven(size_t param) const {
  const size_t boxes = of_param_[param].size();
  if (boxes == 0) return std::nullopt;
  uint64_t sum = 0;
  for (size_t i = 0; i < boxes; ++i) {
    const auto of_box = proven_box(param, i);
    if (!of_box) return std::nullopt;
    sum = boxes == 1 ? *of_box : joined_sum(sum, *of_box);
  }
  return sum;
}

std::optional<uint64_t> PassingProof::proven_box(size_t param, size_t box) const {
  if (box >= of_param_[param].size()) return std::nullopt;
  const Compared& compared = *of_param_[param][box];
  if (!compared.has_passed() || !compared.is_equal()) return std::nullopt;
  return compared.weight.sum.load();
}

}  // namespace optim
