// The checksum of a tensor out of those of its storages.
#include <algorithm>
#include <vector>

#include <ckpt/flat_range.h>

#include "codec/crc32.h"
#include "read/payload_reader.h"

namespace ckpt {
namespace {

// A chunk as a run of the tensor's row-major elements.
struct Run {
  uint64_t first = 0, count = 0;
  const Chunk* chunk = nullptr;
};

// Empty where a chunk is not a run, or runs do not follow each other to the end.
std::vector<Run> runs_of(const TensorEntry& tensor) {
  const Box all = whole(tensor.shape);
  std::vector<Run> runs;
  for (const Chunk& chunk : tensor.chunks) {
    const auto first = first_of_run(all, chunk.box);
    if (!first) return {};
    runs.push_back({*first, element_count(chunk.box.sizes), &chunk});
  }
  std::ranges::sort(runs, {}, &Run::first);
  uint64_t end = 0;
  for (const Run& run : runs) {
    if (run.first != end) return {};
    end += run.count;
  }
  if (end != element_count(tensor.shape)) runs.clear();
  return runs;
}

}  // namespace

std::optional<uint32_t> stated_checksum(const TensorEntry& tensor, const PayloadSource& source) {
  const uint64_t element_bytes = bytes_per_element(tensor.dtype);
  const std::vector<Run> runs = runs_of(tensor);
  if (runs.empty() || tensor.cast) return std::nullopt;
  uint32_t checksum = 0;
  for (const Run& run : runs) {
    if (run.chunk->view || run.chunk->payload_offset_bytes != 0) return std::nullopt;
    const LocatedRegion storage = source.locate(run.chunk->region);
    const uint64_t count_bytes = run.count * element_bytes;
    const bool is_its_own = !storage.view && storage.wrapping == Wrapping::None &&
                            storage.bytes.count_bytes == count_bytes;
    if (!storage.crc32 || !is_its_own) return std::nullopt;
    checksum = crc32_of_both(checksum, *storage.crc32, count_bytes);
  }
  return checksum;
}

}  // namespace ckpt
