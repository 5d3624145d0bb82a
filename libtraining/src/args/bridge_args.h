#pragma once

#include <string>

#include <ckpt/catalog.h>
#include <ckpt/value.h>
#include <ckpt/value_tree.h>
#include <training/opened_training.h>

// A run of Megatron Bridge writes its configuration beside a checkpoint, run_config.yaml, in place
// of args: what Megatron-LM would have called the same, and back.
namespace optim {

inline constexpr const char* kBridgeConfig = "run_config.yaml";
inline constexpr const char* kNemoConfig = "context/model.yaml";

// The text of run_config.yaml where it is Bridge's; empty: there is none.
std::string bridge_config(const OpenedTraining& checkpoint);

// {"args": Namespace}, of the checkpoint whose configuration and common state these are. Throws
// Unsupported where it is not read, or does not say how the checkpoint's state is dealt.
ckpt::ValueTree args_of_bridge(const std::string& config, const ckpt::Value& common_root,
                               const ckpt::Catalog& catalog);

// The same of context/model.yaml beside a folder of NeMo 2, in Megatron-LM's words; fields that it
// has not are left out. `sharding`: how a DistributedOptimizer filed its state; empty: there is
// none.
ckpt::ValueTree args_of_nemo(const std::string& config, const std::string& sharding,
                             const ckpt::Catalog& catalog);

// The configuration with what `args` say otherwise. Throws Unsupported, by name, for what it has no
// place for.
std::string config_with_args(const std::string& config, const ckpt::Value& args);
std::string nemo_config_with_args(const std::string& config, const ckpt::Value& args);

}  // namespace optim
