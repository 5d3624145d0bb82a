// Sums of weights and of rounded masters, while both are copied.
#include "state/passing_proof.h"

#include <algorithm>

#include "state/chunk_pairs.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::TensorEntry;

// What is summed here: 16-bit weights with fp32 masters.
bool is_summed(const TrainedParam& param) {
  if (!param.master || param.master->dtype != DType::Float32) return false;
  const DType weights = param.weight->dtype;
  return (weights == DType::BFloat16 || weights == DType::Float16) &&
         param.weight->shape == param.master->shape;
}

uint64_t bytes_of(const ckpt::Chunk& chunk, DType dtype) {
  return ckpt::element_count(chunk.box.sizes) * ckpt::bytes_per_element(dtype);
}

}  // namespace

PassingProof::PassingProof(const TrainingState& view, const ckpt::Checkpoint& source)
    : view_(view), source_(source), of_param_(view.params.size()) {
  for (size_t i = 0; i < view.params.size(); ++i) {
    if (is_summed(view.params[i])) watch(i);
  }
  for (auto& [key, storage] : storages_) put_in_order(storage);
}

// Chunks that are views with strides are left to prove_rest().
void PassingProof::watch(size_t param) {
  const TrainedParam& of = view_.params[param];
  const auto chunks = chunk_pairs(of);
  const bool is_plain = chunks && std::ranges::all_of(*chunks, [](const ChunkPair& pair) {
                          return !pair.weight->view && !pair.master->view &&
                                 pair.weight->region.wrapping != ckpt::Wrapping::ZstdTorchSave &&
                                 pair.master->region.wrapping != ckpt::Wrapping::ZstdTorchSave;
                        });
  if (!is_plain) return;
  for (const ChunkPair& chunk : *chunks) {
    Pair& pair = pairs_.emplace_back();
    pair.param = param;
    for (const bool is_master : {false, true}) {
      Watched& watched = is_master ? pair.master : pair.weight;
      const ckpt::Chunk& own = is_master ? *chunk.master : *chunk.weight;
      const DType dtype = is_master ? DType::Float32 : of.weight->dtype;
      watched.pair = &pair;
      watched.is_master = is_master;
      watched.weights = of.weight->dtype;
      watched.element_bytes = ckpt::bytes_per_element(dtype);
      watched.begin_bytes = own.payload_offset_bytes;
      watched.count_bytes = bytes_of(own, dtype);
      add_storage(own, watched);
    }
    of_param_[param].push_back(&pair);
  }
}

void PassingProof::add_storage(const ckpt::Chunk& chunk, Watched& watched) {
  const ckpt::StorageRegion& region = chunk.region;
  Storage& storage = storages_[{region.file, region.bytes.offset_bytes}];
  storage.end_bytes = region.bytes.end_bytes();
  storage.watched.push_back(&watched);
}

void PassingProof::put_in_order(Storage& storage) {
  std::ranges::stable_sort(storage.watched, {}, &Watched::begin_bytes);
  uint64_t reach_bytes = 0;
  for (const Watched* const watched : storage.watched) {
    reach_bytes = std::max(reach_bytes, watched->begin_bytes + watched->count_bytes);
    storage.reach_bytes.push_back(reach_bytes);
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
  const uint64_t end = offset_bytes + bytes.size();
  const auto reaching = std::ranges::upper_bound(storage->reach_bytes, offset_bytes);
  for (auto at = storage->watched.begin() + (reaching - storage->reach_bytes.begin());
       at != storage->watched.end() && (*at)->begin_bytes < end; ++at) {
    Watched& watched = **at;
    const uint64_t begin = std::max(offset_bytes, watched.begin_bytes);
    const uint64_t stop = std::min(end, watched.begin_bytes + watched.count_bytes);
    if (begin >= stop) continue;
    note_part(watched, begin - watched.begin_bytes,
              bytes.subspan(begin - offset_bytes, stop - begin));
  }
}

void PassingProof::note_part(Watched& watched, uint64_t offset_bytes,
                             std::span<const std::byte> bytes) {
  const uint64_t pair_bytes = watched.pair_bytes(), end = offset_bytes + bytes.size();
  const uint64_t whole = std::min(end, (offset_bytes + pair_bytes - 1) / pair_bytes * pair_bytes);
  const uint64_t last =
      end == watched.count_bytes ? end : std::max(whole, end / pair_bytes * pair_bytes);
  keep(watched, offset_bytes, bytes.first(whole - offset_bytes));
  add(watched, whole, bytes.subspan(whole - offset_bytes, last - whole));
  keep(watched, last, bytes.subspan(last - offset_bytes));
  const Pair& pair = *watched.pair;
  if (!pair.has_passed() || pair.is_equal()) return;
  refuse_master(source_, view_.params[pair.param]);
}

void PassingProof::add(Watched& watched, uint64_t offset_bytes, std::span<const std::byte> part) {
  const uint64_t first = offset_bytes / watched.element_bytes;
  watched.sum += watched.is_master ? sum_of_masters(part, first, watched.weights)
                                   : sum_of_weights(part, first, watched.weights);
  watched.summed_bytes += part.size();  // after the sum: who sees all bytes summed sees their sum
}

void PassingProof::keep(Watched& watched, uint64_t offset_bytes, std::span<const std::byte> part) {
  if (part.empty()) return;
  const uint64_t pair = offset_bytes / watched.pair_bytes(), start = pair * watched.pair_bytes();
  const uint64_t whole_bytes = std::min(watched.pair_bytes(), watched.count_bytes - start);
  const std::scoped_lock lock(mutex_);
  const auto kept = pieces_.try_emplace({&watched, pair}).first;
  Piece& piece = kept->second;
  std::ranges::copy(part, piece.bytes.begin() + static_cast<ptrdiff_t>(offset_bytes - start));
  piece.count_bytes += part.size();
  if (piece.count_bytes < whole_bytes) return;
  add(watched, start, std::span(piece.bytes).first(whole_bytes));
  pieces_.erase(kept);
}

std::optional<uint64_t> PassingProof::proven(size_t param) const {
  const std::vector<Pair*>& pairs = of_param_[param];
  if (pairs.empty()) return std::nullopt;
  uint64_t sum = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto of_pair = proven_pair(param, i);
    if (!of_pair) return std::nullopt;
    sum = pairs.size() == 1 ? *of_pair : joined_sum(sum, *of_pair);
  }
  return sum;
}

std::optional<uint64_t> PassingProof::proven_pair(size_t param, size_t pair) const {
  if (pair >= of_param_[param].size()) return std::nullopt;
  const Pair& of = *of_param_[param][pair];
  if (!of.has_passed() || !of.is_equal()) return std::nullopt;
  return of.weight.sum.load();
}

}  // namespace optim
