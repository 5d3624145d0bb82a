#pragma once

#include <string>
#include <vector>

#include <ckpt/plain_target.h>
#include <training/opened_training.h>

namespace optim {

// The model among what a training loop has saved: a torch.save file, Lightning's, FSDP's DCP
// folder.
struct PlainModel {
  std::string keys;                   // "app.model": what it lies under; empty: at the root
  std::vector<std::string> left_out;  // "optimizer": what lies beside it
};

// Of the catalog's tensors in order: what rules of keys are asked for, "model.norm.weight".
std::vector<std::string> plain_keys(const OpenedTraining& source);

// By the names of what holds tensors. Throws Unsupported, by name, where it is not known which of
// them are the model.
PlainModel find_plain_model(const OpenedTraining& source);

// "the model is what lies under 'model'; left out: optimizer, epoch".
std::string text_of(const PlainModel& model);

// Rules that carry the model alone, under the names that it has itself, below `place`. Throws
// InvalidArgument for rules that choose keys otherwise.
ckpt::KeyRules rules_of_model(const PlainModel& model, const ckpt::KeyRules& asked,
                              const std::string& place = {});

}  // namespace optim
