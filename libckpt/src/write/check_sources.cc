// The storages that finished pieces were taken from.
#include <ckpt/error.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "io/worker_pool.h"
#include "read/payload_reader.h"
#include "write/source_checker.h"

namespace ckpt {

void check_sources(const Target& target, const Plan& plan, std::span<const Piece> pieces,
                   const Checkpoint& source, const ExecuteOptions& options) {
  std::set<const TensorEntry*> tensors;  // chunks of one are disjoint, so that none is read twice
  std::vector<StorageRegion> storages;
  for (const Piece& piece : pieces) {
    for (size_t r = piece.first_record; r < piece.end_record; ++r) {
      const auto& [file, archive, number, offset_bytes, copies] = plan.records[r];
      const TargetRecord& record = target.files[file].archives[archive].records[number];
      if (const auto* tensor = std::get_if<TensorSource>(&record.source)) {
        tensors.insert(tensor->tensor.get());
      } else if (const auto* storage = std::get_if<StorageSource>(&record.source)) {
        storages.push_back(storage->region);
      } else if (const auto* segments = std::get_if<std::vector<Segment>>(&record.source)) {
        for (const Segment& segment : *segments) {
          const uint64_t start = offset_bytes + segment.offset_bytes;
          if (piece.own.offset_bytes <= start && start < piece.own.end_bytes()) {
            tensors.insert(segment.source.tensor.get());
          }
        }
      }
    }
  }
  for (const TensorEntry* tensor : tensors) {
    for (const Chunk& chunk : tensor->chunks) storages.push_back(chunk.region);
  }
  // Many tensors may lie in one storage.
  const auto place = [](const StorageRegion& region) {
    return std::tuple(region.file, region.bytes.offset_bytes, region.bytes.count_bytes);
  };
  std::ranges::sort(storages, {}, place);
  const auto are_same = [&](const auto& a, const auto& b) { return place(a) == place(b); };
  storages.erase(std::unique(storages.begin(), storages.end(), are_same), storages.end());
  run_jobs(storages.size(), thread_count(options.threads), [&](size_t job, unsigned) {
    if (options.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
    check_storage_crc(source.locate(storages[job]), source);
  });
}

}  // namespace ckpt
