// What a conversion would carry although no optimizer can have made it.
#include "convert/second_moments.h"

#include <string>

#include <ckpt/error.h>

#include "model/tensor_names.h"
#include "state/value_scan.h"

namespace optim {

SecondMoments::SecondMoments(const TrainingState& view) {
  for (const TrainedParam& param : view.params) {
    for (const StateTensor& state : param.states) {
      if (!is_second_moment_name(state.name) || !is_scanned(state.value->dtype)) continue;
      const uint64_t element_bytes = ckpt::bytes_per_element(state.value->dtype);
      for (const ckpt::Chunk& chunk : state.value->chunks) {
        const ckpt::StorageRegion& region = chunk.region;
        if (chunk.view || region.wrapping == ckpt::Wrapping::ZstdTorchSave) continue;
        Storage& storage = storages_[{region.file, region.bytes.offset_bytes}];
        storage.end_bytes = region.bytes.end_bytes();
        storage.watched.add({chunk.payload_offset_bytes,
                             ckpt::element_count(chunk.box.sizes) * element_bytes,
                             Watched{state.value.get(), &chunk}});
      }
    }
  }
  for (auto& [place, storage] : storages_) storage.watched.put_in_order();
}

// A located payload lies within the region that the catalog has.
void SecondMoments::note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                         std::span<const std::byte> bytes) {
  auto found = storages_.upper_bound({located.file, located.bytes.offset_bytes});
  if (found == storages_.begin()) return;
  --found;
  const Storage& storage = found->second;
  if (found->first.first != located.file || located.bytes.end_bytes() > storage.end_bytes) return;
  storage.watched.for_parts(
      offset_bytes, offset_bytes + bytes.size(),
      [&](const auto& range, uint64_t begin_bytes, uint64_t end_bytes) {
        note_part(range.of, begin_bytes - range.begin_bytes,
                  bytes.subspan(begin_bytes - offset_bytes, end_bytes - begin_bytes));
      });
}

void SecondMoments::note_part(const Watched& watched, uint64_t begin_bytes,
                              std::span<const std::byte> bytes) {
  const ckpt::DType dtype = watched.tensor->dtype;
  const uint64_t element_bytes = ckpt::bytes_per_element(dtype);
  const uint64_t cut_bytes = (element_bytes - begin_bytes % element_bytes) % element_bytes;
  if (cut_bytes >= bytes.size()) return;
  const auto whole =
      bytes.subspan(cut_bytes, (bytes.size() - cut_bytes) / element_bytes * element_bytes);
  const ValueScan values = scan(dtype, whole, Wanted::FiniteAndNotNegative);
  if (values.negative.count == 0) return;
  const ckpt::StorageRegion& region = watched.chunk->region;
  const std::scoped_lock lock(mutex_);
  auto& [which, count] =
      negative_[{{region.file, region.bytes.offset_bytes}, watched.chunk->payload_offset_bytes}];
  which = watched;
  count += values.negative.count;
}

void SecondMoments::refuse_negative(const OpenedTraining& source) const {
  if (negative_.empty()) return;
  const auto& [watched, count] = negative_.begin()->second;
  const std::string values = count == 1 ? " value is" : " values are";
  throw ckpt::Error(
      ckpt::ErrorCode::Corrupt,
      {source.file_name(watched.chunk->region.file), std::nullopt, watched.tensor->key},
      std::to_string(count) + values + " negative, which a second moment cannot be",
      "ckpt-inspect verify lists all; --model-only carries the weights");
}

}  // namespace optim
