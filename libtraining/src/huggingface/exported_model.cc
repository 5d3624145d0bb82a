// An export that is read, not written.
#include <training/exported_model.h>

#include <utility>
#include <vector>

#include <training/layer_wise_checkpoint.h>

#include "huggingface/export.h"
#include "state/read_range.h"

namespace optim {
ExportedModel exported_model(const OpenedTraining& checkpoint) {
  HuggingFaceExport made =
      export_model(read_training_state(checkpoint, {.model_only = true}), {}, {});
  ExportedModel model{{}, nullptr, made.names};
  std::vector<ckpt::ComputedTensor> tensors;
  for (auto& [key, value] : made.tensors) {
    ckpt::TensorEntry entry{
        .file = {}, .key = key, .dtype = value.entry->dtype, .shape = value.shape, .chunks = {}};
    if (ckpt::count_bytes(entry) != 0) {
      entry.chunks.push_back(ckpt::chunk_of_computed(entry, static_cast<uint32_t>(tensors.size())));
    }
    model.inventory.tensors.push_back(std::move(entry));
    tensors.push_back(
        {ckpt::bytes_per_element(value.entry->dtype),
         [&checkpoint, tensor = std::move(value.entry)](uint64_t first, std::span<std::byte> out) {
           read_range(checkpoint, *tensor, first, out);
         }});
  }
  model.payloads = ckpt::with_computed(checkpoint, 0, std::move(tensors), checkpoint.shown_path());
  return model;
}

}  // namespace optim
