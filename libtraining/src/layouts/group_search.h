#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/document.h>
#include <training/opened_training.h>

namespace optim {

// An optimizer's state as torch and Megatron save it: a dict with `param_groups` and mostly
// `state`, somewhere near the root of a file.
struct FoundOptimizer {
  std::string file;       // as the catalog's entries name it; empty for a single file and an object
  std::string object;     // key of the object in a torch_dist folder that holds it, else empty
  std::string pointer;    // to the dict
  ckpt::Value optimizer;  // the dict
  ckpt::Value groups;     // its list `param_groups`
  std::optional<ckpt::Value> scaler;  // the dict `grad_scaler` beside the dict
  std::shared_ptr<const ckpt::Document> document = nullptr;  // of an object: what keeps it alive

  std::optional<ckpt::Value> state() const { return optimizer.find("state"); }
};

// All of them, in the order of files; then those in objects of a torch_dist folder (the common
// state of Megatron since core 0.19, and DistributedOptimizers). They point into the checkpoint.
std::vector<FoundOptimizer> find_optimizers(const OpenedTraining& checkpoint);

// The name by which a group's settings are to be told apart when Megatron loads it: wd_mult,
// lr_mult, is_expert_parallel and is_decoupled_lr (also as pre_..., which NeMo writes). nullopt for
// groups that are not Megatron's.
std::optional<std::string> group_identity(const ckpt::Value& group);

}  // namespace optim
