#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <training/filing.h>
#include <training/opened_training.h>

namespace optim {

// What a Megatron checkpoint says of the run that wrote it: the training arguments, of `torch` the
// first model_optim_rng.pt's, of torch_dist the common state's. All empty where there are none.
struct RunFacts {
  std::vector<std::pair<std::string, int64_t>> sizes;  // parallel sizes, under the names of args
  std::string optimizer;                               // args.optimizer
  std::optional<bool> decoupled_weight_decay;
  std::string checkpoint_version;
  const Release* release = &kCore019;  // of torch_dist with LayerWise state

  std::shared_ptr<const ckpt::Document> document;  // what `args` points into; or the checkpoint
  std::optional<ckpt::Value> args;                 // a Dict
};

RunFacts run_facts(const OpenedTraining& checkpoint);

}  // namespace optim
