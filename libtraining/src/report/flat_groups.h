#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/value.h>
#include <training/groups.h>
#include <training/opened_training.h>

// Parameter groups of PyTorch's torch_dist folders (FSDP, DCP), flattened into an object for each
// setting: "optimizer.param_groups.0.lr", or with flatten_optimizer_state_dict one for each
// parameter, "optim.param_groups.NAME.lr".
namespace optim {

struct FlatGroup {
  std::string optimizer;                                      // the key in front of "param_groups"
  std::vector<std::pair<std::string, ckpt::Value>> settings;  // without `params`
  std::vector<std::string> params;                            // their names, as far as stored
};

struct FlatGroups {
  std::vector<FlatGroup> groups;  // in the order of the catalog, those of one optimizer together
  std::vector<std::shared_ptr<const ckpt::Document>> documents;  // what settings point into
};

// Of settings that each parameter has for itself, parameters with equal ones make a group.
FlatGroups find_flat_groups(const OpenedTraining& checkpoint);

// The step counts of parameters, as a setting: the number that all have, or the least and the
// greatest. nullopt where there is none. The value lies in a document of its own.
std::optional<std::pair<ckpt::Value, std::shared_ptr<const ckpt::Document>>> step_setting(
    const std::vector<double>& counts);

// What tells values of settings apart; nullopt for what is neither a number nor text, nor a list of
// them.
std::optional<std::string> signature_of(const ckpt::Value& value);

// All of a stored group but its parameters.
std::vector<std::pair<std::string, ckpt::Value>> settings_of(const ckpt::Value& group);

// The groups that files of any training loop store, their parameters by the names that the files
// prove, and which rank of a torch_dist folder wrote which state. Where all are named it clears
// report.unnamed_reason; it says more in it where they are not.
void add_stored(const OpenedTraining& checkpoint, GroupReport& report);

}  // namespace optim
