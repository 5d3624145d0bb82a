#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ckpt/payload_source.h>
#include <ckpt/plain_target.h>
#include <training/convert.h>
#include <training/filed_state.h>
#include <training/opened_training.h>
#include <nlohmann/json.hpp>

#include "huggingface/config_args.h"
#include "huggingface/quantized.h"

namespace optim {

// A Hugging Face folder as what a Megatron run of one rank would start from.
struct HuggingFaceImport {
  FiledState state;
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // null: all comes from the folder
  std::string names;                                    // "llama, LlamaForCausalLM, by config.json"
  std::vector<ckpt::TargetFile> files = {};             // of the target's folder, too
};

// Of a run of one rank with these args, whose weights are of `type`.
FiledState state_without_params(nlohmann::json args, ckpt::DType type, ckpt::Format container);

// Whether a folder says in its config.json which architecture its tensors are of.
bool states_architecture(const OpenedTraining& folder);

struct ImportOptions {
  const HuggingFaceOptions& names;
  ckpt::KeyRules keys = {};                          // of the folder: what --exclude leaves out
  ckpt::Format container = ckpt::Format::TorchDist;  // of the target
};

// By the table of its architecture, read backwards. Every tensor of the folder has its place, or is
// in state.not_carried with the reason: it equals one that has. Throws Unsupported, by name, for an
// architecture that no table has, for a config.json that the table's args do not give again, for a
// tensor without a place, of another shape, or missing; as read_named_file() for config.json.
HuggingFaceImport import_model(const OpenedTraining& folder, const ImportOptions& options);
// The same of tensors of any checkpoint, of a model that has these args.
HuggingFaceImport import_tensors(const OpenedTraining& folder, const FolderTensors& tensors,
                                 ImportArgs args, const ImportOptions& options);

}  // namespace optim
