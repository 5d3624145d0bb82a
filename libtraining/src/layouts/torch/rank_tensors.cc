// Parts of tensors, as a tensor-parallel rank has them.
#include "layouts/torch/rank_tensors.h"

#include <algorithm>

#include <ckpt/error.h>

namespace optim {
namespace {

using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

// What a tensor parallel rank has of a tensor: blocks one behind the other, and zeros where these
// reach beyond the source's rows (padding of the vocabulary).
ckpt::RecordSource source_of(const TensorRef& tensor, const std::vector<ckpt::Box>& boxes) {
  const bool has_padding =
      !tensor->shape.empty() && std::ranges::any_of(boxes, [&](const auto& box) {
        return box.offsets[0] + box.sizes[0] > tensor->shape[0];
      });
  if (boxes.size() == 1 && !has_padding) return ckpt::TensorSource{tensor, boxes[0]};
  std::vector<ckpt::Segment> segments;
  uint64_t offset_bytes = 0;
  for (ckpt::Box box : boxes) {
    const uint64_t box_bytes =
        ckpt::element_count(box.sizes) * ckpt::bytes_per_element(tensor->dtype);
    const uint64_t stored = tensor->shape[0];
    if (box.offsets[0] < stored) {
      box.sizes[0] = std::min(box.sizes[0], stored - box.offsets[0]);
      const uint64_t count = ckpt::element_count(box.sizes);
      segments.push_back({offset_bytes, {tensor, std::move(box)}, 0, count});
    }
    offset_bytes += box_bytes;
  }
  return segments;
}

[[noreturn]] void refuse_shape(const ckpt::TensorEntry& tensor) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = tensor.key},
                    "has a shape of its own, so that tensor-parallel ranks cannot share it",
                    "--tp 1");
}

}  // namespace

NodeId with_attributes(ValueTree& tree, NodeId tensor, NodeId attributes) {
  const NodeId args =
      tree.tuple({tree.value(tensor).callable().id(), tree.global("torch", "Tensor"),
                  tree.value(tensor).args().id(), attributes});
  return tree.object(ckpt::Construction::Reduce,
                     tree.global("torch._tensor", "_rebuild_from_type_v2"), args);
}

NodeId RankTensors::plain(uint32_t param, const TensorRef& tensor) const {
  const Placement& placement = *job_.placement;
  const bool is_of_shape = tensor->shape == job_.source.params[param].weight->shape;
  if (!is_of_shape) {
    if (placement.tensor_ranks(param) > 1) refuse_shape(*tensor);
    return archive_.add_tensor(tensor->dtype, tensor->shape, tensor_source(tensor));
  }
  const auto boxes = placement.boxes(param, placement.tensor_rank(param, at_));
  return archive_.add_tensor(tensor->dtype, placement.shape_on_rank(param),
                             source_of(tensor, boxes));
}

NodeId RankTensors::with_stated_attributes(uint32_t param, const TensorRef& tensor) const {
  const NodeId written = plain(param, tensor);
  const auto attributes = job_.source.attributes.find(tensor->key);
  if (attributes == job_.source.attributes.end()) return written;
  const Value stated = job_.source.common.tree.value(attributes->second);
  return with_attributes(archive_.tree(), written, archive_.carry(stated, job_.source.common));
}

}  // namespace optim
