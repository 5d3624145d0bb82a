#include <ckpt/read_record.h>

#include <algorithm>
#include <cstring>
#include <variant>

#include <ckpt/flat_range.h>

namespace ckpt {
namespace {

// Elements from `first` on of a box of a tensor, as many as `out` has room for.
void read_range(const TensorSource& from, uint64_t first, const Checkpoint& source,
                std::span<std::byte> out) {
  const uint64_t element_bytes = bytes_per_element(from.tensor->dtype);
  for (const Box& box : boxes_of_flat_range(from.box, first, out.size() / element_bytes)) {
    const uint64_t box_bytes = element_count(box.sizes) * element_bytes;
    source.read(*from.tensor, box, out.first(box_bytes));
    out = out.subspan(box_bytes);
  }
}

}  // namespace

void read_record(const TargetRecord& record, const Checkpoint& source, std::span<std::byte> out) {
  if (out.empty()) return;
  if (const auto* tensor = std::get_if<TensorSource>(&record.source)) {
    source.read(*tensor->tensor, tensor->box, out);
  } else if (const auto* storage = std::get_if<StorageSource>(&record.source)) {
    source.read_bytes(source.locate(storage->region), 0, out);
  } else if (const auto* bytes = std::get_if<std::string>(&record.source)) {
    std::memcpy(out.data(), bytes->data(), out.size());
  } else {
    std::ranges::fill(out, std::byte{0});
    for (const Segment& segment : std::get<std::vector<Segment>>(record.source)) {
      const uint64_t element_bytes = bytes_per_element(segment.source.tensor->dtype);
      read_range(segment.source, segment.first_element, source,
                 out.subspan(segment.offset_bytes, segment.element_count * element_bytes));
    }
  }
}

}  // namespace ckpt
