#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <ckpt/document.h>
#include <nlohmann/json.hpp>

#include "huggingface/name_table.h"

// What the config.json of a Hugging Face folder says of a run's arguments, by the table of its
// architecture: for checkpoints that lack them.
namespace optim {

// Its table, and the arguments that this gives it. `names`: as HuggingFaceOptions has it. Throws
// Unsupported, by name, for an architecture that no table has; Corrupt for a file that is no
// config.json; as read_named_file().
struct ConfigArgs {
  NameTable table;
  nlohmann::json args;
};
// Throw Corrupt for what is not a JSON object; as read_named_file().
nlohmann::json read_object(const std::filesystem::path& path);
nlohmann::json config_of(const std::filesystem::path& folder);
ConfigArgs args_of_config(const std::filesystem::path& folder, const std::string& names);

// A common state that holds arguments, as Megatron-LM saves them, and nothing else.
std::shared_ptr<const ckpt::Document> state_of_args(const nlohmann::json& args);

// Throws Unsupported, by field, where what a table makes of arguments is not what config.json says
// that they were taken from.
void require_same_config(const nlohmann::json& made, const std::filesystem::path& folder);

}  // namespace optim
