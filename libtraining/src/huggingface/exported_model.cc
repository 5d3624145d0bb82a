// An export that is read, not written.
#include <training/exported_model.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <ckpt/flat_range.h>
#include <training/layer_wise_checkpoint.h>

#include "huggingface/export.h"

namespace optim {
namespace {

// Each tensor of an export as a file of its own by number, row-major.
class ExportedPayloads final : public ckpt::PayloadSource {
 public:
  ExportedPayloads(std::vector<HuggingFaceExport::Tensor> tensors, const OpenedTraining& source)
      : tensors_(std::move(tensors)), source_(source) {}

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override { return {region}; }

  // Readers of whole elements ask for whole elements.
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    const ckpt::TensorEntry& entry = *tensors_[located.file].value.entry;
    const uint64_t element_bytes = ckpt::bytes_per_element(entry.dtype);
    for (const ckpt::Box& box : ckpt::boxes_of_flat_range(
             ckpt::whole(entry.shape), offset_bytes / element_bytes, out.size() / element_bytes)) {
      const uint64_t count_bytes = ckpt::element_count(box.sizes) * element_bytes;
      source_.read(entry, box, out.first(count_bytes));
      out = out.subspan(count_bytes);
    }
  }

  std::string file_name(uint32_t) const override { return source_.shown_path(); }

 private:
  std::vector<HuggingFaceExport::Tensor> tensors_;
  const OpenedTraining& source_;
};

}  // namespace

ExportedModel exported_model(const OpenedTraining& checkpoint) {
  HuggingFaceExport made = export_model(name_layer_wise(checkpoint, {.model_only = true}), {}, {});
  ExportedModel model{{}, nullptr, made.names};
  for (uint32_t i = 0; i < made.tensors.size(); ++i) {
    const auto& [key, value] = made.tensors[i];
    ckpt::TensorEntry entry{
        .file = {}, .key = key, .dtype = value.entry->dtype, .shape = value.shape, .chunks = {}};
    const uint64_t bytes = ckpt::count_bytes(entry);
    if (bytes != 0) {
      entry.chunks.push_back({ckpt::whole(entry.shape), {.file = i, .bytes = {0, bytes}}});
    }
    model.inventory.tensors.push_back(std::move(entry));
  }
  model.payloads = std::make_shared<ExportedPayloads>(std::move(made.tensors), checkpoint);
  return model;
}

}  // namespace optim
