#pragma once

#include <string>

#include <training/convert.h>
#include <training/opened_training.h>
#include <nlohmann/json.hpp>

#include "huggingface/config_args.h"

namespace optim {

// What a run of one rank is told that goes on with a Hugging Face folder.
struct ImportArgs {
  NameTable table;
  nlohmann::json args;
  nlohmann::json given;                    // beside them, for expressions: the vocabulary
  std::vector<std::string> unused_fields;  // of config.json: the table makes none of them
};

// By config.json, and for what that leaves open by options.args_from: a JSON object, or a Megatron
// checkpoint. Throws Unsupported, by name, where the table does not give config.json again or its
// conditions do not hold.
ImportArgs import_args(const std::filesystem::path& folder, const HuggingFaceOptions& options);

}  // namespace optim
