#include "huggingface/config_args.h"

#include <algorithm>
#include <string_view>

#include <ckpt/error.h>
#include <ckpt/named_file.h>

#include "model/expression.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::NodeId;
using ckpt::ValueTree;
using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kBytesMax = 16 << 20;
constexpr int kDepthMax = 32;

// Fields of objects by the names of all: rope_parameters_full_attention_rope_theta.
void flatten(const std::string& front, const json& object, json& flat, int depth = 0) {
  for (const auto& [name, value] : object.items()) {
    flat[front + name] = value;
    if (value.is_object() && depth < 2) flatten(front + name + "_", value, flat, depth + 1);
  }
}

NameTable table_of(const json& config, const fs::path& folder, const std::string& names) {
  if (names != "auto") return find_table(names);
  const json architectures = config.value("architectures", json::array());
  const std::string wanted =
      architectures.is_array() && architectures.size() == 1 && architectures[0].is_string()
          ? architectures[0].get<std::string>()
          : "";
  std::string known;
  for (const std::string& name : known_tables()) {
    NameTable table = find_table(name);
    if (table.architecture == wanted) return table;
    known += (known.empty() ? "" : ", ") + table.architecture;
  }
  throw Error(ErrorCode::Unsupported,
              {.file = (folder / "config.json").string(), .key = "architectures"},
              "is " + architectures.dump() + ", expected one of " + known,
              "--names FILE takes a table of your own, --names none keeps a folder's names: "
              "docs/huggingface.md");
}

NodeId node_of(const json& value, ValueTree& tree, int depth = 0) {
  if (value.is_boolean()) return tree.boolean(value.get<bool>());
  if (value.is_number_integer()) return tree.integer(value.get<int64_t>());
  if (value.is_number()) return tree.real(value.get<double>());
  if (value.is_string()) return tree.str(value.get<std::string>());
  if (!value.is_array() || depth > kDepthMax) return tree.none();
  const NodeId list = tree.list();
  for (const json& each : value) tree.append(list, node_of(each, tree, depth + 1));
  return list;
}

// Releases of transformers write it in two places; null: as it is without any.
json rope_of(const json& config) {
  json rope = config.value("rope_scaling", json());
  if (rope.is_null()) rope = config.value("rope_parameters", json());
  if (rope.is_object() && rope.contains("full_attention")) rope = json(rope["full_attention"]);
  if (!rope.is_object()) return nullptr;
  rope.erase("rope_theta");
  if (rope.contains("type") && !rope.contains("rope_type")) rope["rope_type"] = rope["type"];
  rope.erase("type");
  return rope.value("rope_type", json("default")) == "default" ? json() : rope;
}

}  // namespace

json read_object(const fs::path& path) {
  json object = json::parse(ckpt::read_named_file(path, kBytesMax), nullptr, false);
  if (object.is_object()) return object;
  throw Error(ErrorCode::Corrupt, {.file = path.string(), .key = {}}, "is not a JSON object",
              "copy it again; --names none converts a folder's tensors without it");
}

json config_of(const fs::path& folder) { return read_object(folder / "config.json"); }

ConfigArgs args_of_config(const fs::path& folder, const std::string& names) {
  const json config = config_of(folder);
  json flat = json::object();
  flatten("", config, flat);
  ConfigArgs found{table_of(config, folder, names), json::object()};
  for (const auto& [name, text] : found.table.args) {
    try {
      found.args[name] =
          evaluate(text, [&](const std::string& field) { return flat.value(field, json()); });
    } catch (Error& error) {
      throw error.within({.file = (folder / "config.json").string(), .key = name});
    }
  }
  return found;
}

std::shared_ptr<const ckpt::Document> state_of_args(const json& args) {
  auto document = std::make_shared<ckpt::Document>();
  ValueTree& tree = document->tree;
  const NodeId attributes = tree.dict();
  for (const auto& [name, value] : args.items()) tree.put(attributes, name, node_of(value, tree));
  const NodeId space =
      tree.object(ckpt::Construction::Reduce, tree.global("argparse", "Namespace"), tree.tuple());
  tree.set_state(space, attributes);
  const NodeId root = tree.dict();
  tree.put(root, "args", space);
  tree.set_root(root);
  return document;
}

void require_same_config(const json& made, const fs::path& folder) {
  constexpr std::string_view kOwn[] = {"dtype",        "use_cache",    "rope_scaling", "rope_theta",
                                       "bos_token_id", "eos_token_id", "pad_token_id"};
  const json given = config_of(folder);
  const auto refuse = [&](const std::string& field, const json& is, const json& expected) {
    throw Error(ErrorCode::Unsupported, {.file = (folder / "config.json").string(), .key = field},
                "is " + is.dump() + ", but the model would get " + expected.dump(),
                "--args-from FILE says what args of the checkpoint lack");
  };
  for (const auto& [field, value] : made.items()) {
    const auto stated = given.find(field);
    if (stated == given.end() || stated->is_null()) continue;
    if (std::ranges::find(kOwn, field) != std::end(kOwn) || *stated == value) continue;
    refuse(field, *stated, value);
  }
  const json rope = rope_of(given), made_rope = rope_of(made);
  if (rope != made_rope) refuse("rope_parameters", rope, made_rope);
}

}  // namespace optim
