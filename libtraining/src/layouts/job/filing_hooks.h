#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include <ckpt/target.h>
#include <optim/param_group.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

#include "args/common_state.h"
#include "grid/build_state.h"

// What a filing does by itself. Of one without hooks the container does all: tensors under their
// parameters' names in a store, numbered parameters in rank files.
namespace optim {

struct StoreFiles;
struct TargetJob;
struct TorchSource;

// --- torch_dist ---

struct StoreInto {
  const OpenedTraining& source;
  const CommonState& stated;  // whose args say how buffers are cut
  const std::vector<ParamGroup>& groups;
  CommonBuilder& common;
  FiledState& state;  // its model and its splits are known, and its chain has its length
};

// What a store holds of the optimizers that are filed so. Points into the checkpoint.
class StoredOptimizers {
 public:
  virtual ~StoredOptimizers() = default;
  // By place in the chain.
  virtual std::map<uint32_t, const Filing*> optimizers() const = 0;
  // Their masters, states and groups.
  virtual void read(const StoreInto& into) const = 0;
};

struct StoreHooks {
  // Whether a tensor or an object of this key is of such an optimizer.
  bool (*owns)(std::string_view key);
  // All of them. Throws Corrupt for a key that it owns and cannot take apart.
  std::unique_ptr<StoredOptimizers> (*find)(const ckpt::Catalog& catalog);
  // Those of the job whose filing is this one.
  void (*write)(const StoreFiles& files, const Filing& filing);
};

// The hooks that own what lies under a key; null: none.
const StoreHooks* store_hooks_of(std::string_view key);

// --- torch ---

struct RankFilesInto {
  const TorchSource& source;
  const ckpt::Value& args;
  const std::vector<ParamGroup>& groups;
  CommonBuilder& common;
  FiledState& state;  // its model and its splits are known, and its chain has its length
};

struct RankFileHooks {
  // Of all optimizers of the chain: masters, states and groups.
  void (*read)(const RankFilesInto& into);
  std::vector<ckpt::TargetFile> (*write)(const TargetJob& job);
};

// --- all filings ---

// For tests that add one.
std::vector<const Filing*>& filing_table();

}  // namespace optim
