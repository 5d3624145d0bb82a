#pragma once

#include <span>
#include <string>
#include <vector>

#include "grid/flat_buffers.h"
#include "layouts/job/layer_wise_target.h"

// What a DistributedOptimizer's flat buffers hold, as parts of records. Pure.
namespace optim {

// Of a job's target: its buffers. The job must outlive it.
class TargetBuffers {
 public:
  explicit TargetBuffers(const TargetJob& job);
  TargetBuffers(const TargetBuffers&) = delete;
  TargetBuffers& operator=(const TargetBuffers&) = delete;
  const FlatBuffers& buffers() const { return buffers_; }
  // "(torch.bfloat16, torch.float32)", of weights and gradients, as Megatron keys what it keeps of
  // buffers: a tuple in a tree, and as a text.
  ckpt::NodeId add_types(ckpt::ValueTree& tree, const FlatBuffer& buffer) const;
  std::string types_text(const FlatBuffer& buffer) const;

 private:
  ckpt::DType weights_of(const FlatBuffer& buffer) const;
  ckpt::DType gradients_of(const FlatBuffer& buffer) const;

  const TargetJob& job_;
  FlatArguments arguments_;
  FlatBuffers buffers_;
};

// A state that every parameter of a buffer has: param, exp_avg, ...
struct FlatState {
  std::string name;
  ckpt::DType dtype = ckpt::DType::Float32;
};
// Throws Unsupported where parameters of the buffer have different ones, or of other types, or none
// of their parameter's shape.
std::vector<FlatState> states_in(const TrainingState& source, const FlatBuffer& buffer);
const TensorRef& state_of(const TrainedParam& param, std::string_view name);

// What a rank of the target has of a parameter, one behind the other.
std::vector<ckpt::Box> boxes_on_rank(const TargetJob& job, uint32_t param,
                                     const RankCoordinates& at);
// `range` of their elements, of one of the parameter's tensors, at an offset in a record. Rows of
// padding, which the source does not have, are left as gaps.
std::vector<ckpt::Segment> segments_of(std::span<const ckpt::Box> boxes, const TensorRef& tensor,
                                       ElementRange range, uint64_t offset_bytes);

}  // namespace optim
