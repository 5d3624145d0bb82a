#pragma once

#include <ckpt/archive_builder.h>

#include "layouts/job/layer_wise_target.h"

// What a rank's file holds of a parameter's tensors.
namespace optim {

// A tensor with attributes is one rebuilt with a state dict.
ckpt::NodeId with_attributes(ckpt::ValueTree& tree, ckpt::NodeId tensor, ckpt::NodeId attributes);

// Writes a rank's part of tensors into an archive. All must outlive it.
class RankTensors {
 public:
  RankTensors(const TargetJob& job, const RankCoordinates& at, ckpt::ArchiveBuilder& archive)
      : job_(job), at_(at), archive_(archive) {}

  // Throws Unsupported for one that is not of its parameter's shape, if ranks would share it.
  ckpt::NodeId plain(uint32_t param, const TensorRef& tensor) const;
  // With the attributes that the source's files state.
  ckpt::NodeId with_stated_attributes(uint32_t param, const TensorRef& tensor) const;

 private:
  const TargetJob& job_;
  const RankCoordinates& at_;
  ckpt::ArchiveBuilder& archive_;
};

}  // namespace optim
