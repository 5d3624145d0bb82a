#pragma once

#include <cstdint>
#include <string>

#include <ckpt/archive_builder.h>
#include <ckpt/torch_dist_target.h>

#include "layouts/job/holding_ranks.h"
#include "layouts/job/layer_wise_target.h"

namespace optim {

// A torch_dist folder on its way: what is added to `spec` gets into its files.
struct StoreFiles {
  const TargetJob& job;
  const HoldingRanks& ranks;
  ckpt::DistSpec& spec;

  // What torch.save writes of `root`; an object is given to it in a list.
  void add_archive(std::string key, ckpt::ArchiveBuilder& archive, ckpt::NodeId root,
                   uint32_t writer) const;
  void add_object(std::string key, ckpt::ArchiveBuilder& archive, ckpt::NodeId object,
                  uint32_t writer) const;
};

// What the optimizer that steps keeps: its groups, and where it counts steps beside them.
ckpt::NodeId write_wrapped(const TargetJob& job, uint32_t optimizer, ckpt::ArchiveBuilder& archive);

}  // namespace optim
