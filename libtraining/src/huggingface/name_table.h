#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

// By which names and in which form the tensors of a Megatron model leave for a Hugging Face folder,
// and its config.json from args: data, one table for each architecture
// (libtraining/src/model/names, docs/schema/input/name_table.json, docs/huggingface.md).
namespace optim {

// A tensor of the model, or what a tensor of the target has of it.
struct RowPart {
  std::vector<std::string> from;                  // the model's names for it: one of them is there
  std::string view, as;                           // the axes of the source and of the target
  std::map<std::string, std::string> slice = {};  // "FIRST:END" of an axis
  std::string rows = {};  // "FIRST:END:COUNT" of the first dimension, which `view` is of then
};

struct TensorRow {
  std::string target;               // with {layer} and {expert} for their numbers
  std::string when = "True";        // whether the model has it, of a layer
  std::string add = {};             // to each element
  std::vector<RowPart> parts = {};  // one behind the other along an axis of their `as`
};

// Layers that predict further tokens, numbered behind those of the decoder: which parts of names
// stand for which in them. {mtp} is their own number.
struct FurtherLayers {
  std::string count = "0";
  std::map<std::string, std::vector<std::string>> names = {};
};

struct NameTable {
  std::string name, architecture, model_type;
  // Expressions: names for values, what must be true, what must be true to be chosen unasked, the
  // fields of config.json.
  std::map<std::string, std::string> let, needed, chosen_for, config;
  std::vector<TensorRow> tensors = {};
  FurtherLayers further = {};
  std::map<std::string, std::string> args =
      {};  // by fields of config.json: huggingface/config_args.h
};

// "llama", ...: those with an architecture.
std::vector<std::string> known_tables();
// One of them, or that of a file (a name with a dot or a slash). Throws Unsupported, with those
// that are known, Corrupt for what is not in the schema, as read_named_file() of a file.
NameTable find_table(const std::string& name);
// Of such a file's text, parsed. Throws Corrupt.
NameTable read_table(const nlohmann::json& table, const std::string& name);

// What expressions of a table may name, with the arguments of one run.
class NameScope {
 public:
  // `given`: beside arguments. Both objects. The table must outlive it.
  NameScope(const NameTable& table, nlohmann::json args, nlohmann::json given)
      : table_(table), args_(std::move(args)), given_(std::move(given)) {}

  nlohmann::json value(const std::string& text, std::optional<uint32_t> layer = {}) const;
  // A number of elements.
  uint64_t size(const std::string& text) const;
  // "normalization = 'LayerNorm', ...": the arguments that an expression asks for.
  std::string arguments_of(const std::string& text) const;

 private:
  nlohmann::json look_up(const std::string& name, std::optional<uint32_t> layer, int depth) const;
  nlohmann::json value_at(const std::string& text, std::optional<uint32_t> layer, int depth) const;

  const NameTable& table_;
  nlohmann::json args_, given_;
  mutable std::map<std::string, nlohmann::json> asked_;  // arguments, by name
  mutable std::map<std::string, uint64_t> sizes_;        // by expression
};

}  // namespace optim
