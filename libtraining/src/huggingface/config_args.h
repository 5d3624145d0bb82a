#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <ckpt/document.h>
#include <ckpt/folder.h>
#include <training/convert.h>
#include <training/opened_training.h>

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
inline bool is_folder(const std::filesystem::path& path) {
  return ckpt::kind_at(path) == ckpt::EntryKind::Folder;
}
// Throw Corrupt for what is not a JSON object; as read_named_file().
nlohmann::json read_object(const std::filesystem::path& path);
nlohmann::json config_of(const std::filesystem::path& folder);
// The one that config.json names; empty: none, or several.
std::string architecture_of(const nlohmann::json& config);
std::optional<NameTable> table_of_architecture(const std::string& architecture);
ConfigArgs args_of_config(const std::filesystem::path& folder, const std::string& names);

// A common state that holds arguments, as Megatron-LM saves them, and nothing else.
std::shared_ptr<const ckpt::Document> state_of_args(const nlohmann::json& args);

// Throws Unsupported, by field, where what a table makes of arguments is not what config.json says
// that they were taken from.
void require_same_config(const nlohmann::json& made, const std::filesystem::path& folder);

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
