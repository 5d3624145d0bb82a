// ckpt-inspect tree: the nested structure that keys spell.
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/key_filter.h>
#include <common/option_values.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <optim/key_tree.h>

#include "inspect/commands.h"
#include "inspect/listing.h"

namespace tools::inspect {
namespace {

struct TreeOptions {
  SourceOptions source;
  KeyFilter filter;
  size_t depth = SIZE_MAX;

  void declare(CLI::App& app) {
    source.declare(app);
    filter.declare(app);
    app.add_option("--depth", depth, "Only this many levels")->check(kCount)->option_text("N");
  }
};

std::string what_text(const optim::KeyBranch& branch) {
  if (branch.row == nullptr || !branch.children.empty()) {
    std::string text = count_text(branch.tensor_count, "tensor");
    if (branch.object_count != 0) text += ", " + count_text(branch.object_count, "object");
    return text;
  }
  const ckpt::TensorEntry* tensor = branch.row->tensor;
  if (tensor == nullptr) return "object";
  return std::string(name(tensor->dtype)) + " " + shape_text(tensor->shape);
}

// optim::kKeyDepthMax bounds the recursion.
void add_rows(Table& table, const optim::KeyBranch& branch, size_t depth, size_t depth_max) {
  if (depth >= depth_max) return;
  for (const auto& child : branch.children) {
    const bool is_leaf = child->children.empty();
    table.add_row({{std::string(2 * depth, ' ') + ckpt::escaped(child->name),
                    is_leaf ? Paint::Plain : Paint::Bold},
                   {child->count_bytes != 0 ? size_text(child->count_bytes) : "-"},
                   {what_text(*child), is_leaf ? Paint::Cyan : Paint::Dim}});
    add_rows(table, *child, depth + 1, depth_max);
  }
}

nlohmann::json to_json(const optim::KeyBranch& branch, size_t depth_left) {
  nlohmann::json json = {{"tensors", branch.tensor_count},
                         {"objects", branch.object_count},
                         {"bytes", branch.count_bytes}};
  if (branch.row != nullptr && branch.row->tensor != nullptr) {
    json["dtype"] = name(branch.row->tensor->dtype);
    json["shape"] = branch.row->tensor->shape;
  }
  if (branch.children.empty() || depth_left == 0) return json;
  json["children"] = nlohmann::json::array();
  for (const auto& child : branch.children) {
    nlohmann::json node = to_json(*child, depth_left - 1);
    node["name"] = json_text(child->name);
    json["children"].push_back(std::move(node));
  }
  return json;
}

int run(const TreeOptions& options, Console& console) {
  const ckpt::Checkpoint checkpoint = options.source.open_to_list(console);
  const auto rows = optim::list_rows(checkpoint.catalog(), options.filter.selection());
  const optim::KeyBranch root = optim::make_key_tree(rows);
  if (console.options().json) {
    nlohmann::json document = json_document();
    document["format"] = name(checkpoint.catalog().format);
    add_missing_files(document, checkpoint.catalog());
    document["tree"] = to_json(root, options.depth);
    print_json(console, document);
    return 0;
  }
  Table table({{.title = "KEY", .can_shorten = true}, {"BYTES", Align::Right}, {""}});
  add_rows(table, root, 0, options.depth);
  table.print(console);
  return 0;
}

}  // namespace

Command make_tree_command() {
  return make_command<TreeOptions>(
      {.name = "tree",
       .description = "Shows the nested structure, with tensors and bytes below each step.",
       .examples = {"ckpt-inspect tree ckpt/", "ckpt-inspect tree ckpt/ --depth 3",
                    "ckpt-inspect tree model.pt --include '/optimizer/*' --json"}},
      run);
}

}  // namespace tools::inspect
