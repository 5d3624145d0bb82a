#include <ckpt/read_record.h>

#include <algorithm>
#include <cstring>
#include <variant>

#include <ckpt/flat_range.h>

namespace ckpt {

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
    for (const auto& [offset_bytes, from, first, count] :
         std::get<std::vector<Segment>>(record.source)) {
      auto rest = out.subspan(offset_bytes);
      for (const Box& box : boxes_of_flat_range(from.box, first, count)) {
        const uint64_t box_bytes = element_count(box.sizes) * bytes_per_element(from.tensor->dtype);
        source.read(*from.tensor, box, rest.first(box_bytes));
        rest = rest.subspan(box_bytes);
      }
    }
  }
}

}  // namespace ckpt
