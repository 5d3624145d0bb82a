// ckpt-inspect tree: the nested structure that keys spell.
#include <algorithm>
#include <map>
#include <memory>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>

#include "inspect/commands.h"
#include "inspect/listing.h"
#include "inspect/modules.h"

namespace tools::inspect {
namespace {

// Deeper keys keep the rest in one piece: what a file says must not decide how deep we nest.
constexpr size_t kDepthMax = 32;

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

// What lies below a step. Keys of one name are one node, the last row shown.
struct Branch {
  std::string name;
  uint64_t tensor_count = 0, object_count = 0, count_bytes = 0;
  const Row* entry = nullptr;
  std::vector<std::unique_ptr<Branch>> children;  // in the order of the file, numbers in theirs
  std::map<std::string, Branch*> by_name;

  Branch& child(const std::string& step) {
    Branch*& known = by_name[step];
    if (known == nullptr) {
      children.push_back(std::make_unique<Branch>());
      known = children.back().get();
      known->name = step;
    }
    return *known;
  }
  void count(const Row& row) {
    ++(row.tensor != nullptr ? tensor_count : object_count);
    count_bytes += row.count_bytes.value_or(0);
  }
};

// "/model/a~1b" -> model, a/b; "decoder.layers.weight" -> decoder, layers, weight; the file first.
std::vector<std::string> steps_of(const Row& row) {
  std::vector<std::string> steps;
  if (!row.file().empty()) steps.push_back(row.file());
  const std::string& key = row.key();
  const bool is_pointer = key.starts_with('/');
  const char separator = is_pointer ? '/' : '.';
  // "rng_state/shard_0.0_1.1": a part of a sharded object is one step.
  const size_t last = is_pointer ? key.npos : key.find("/shard_");
  size_t start = is_pointer ? 1 : 0;
  while (steps.size() + 1 < kDepthMax) {
    const size_t end = key.find(separator, start);
    if (end >= last) break;
    steps.push_back(key.substr(start, end - start));
    start = end + 1;
  }
  steps.push_back(key.empty() ? "(root)" : key.substr(std::min(start, key.size())));
  for (std::string& step : steps) {
    if (!is_pointer) continue;
    for (size_t at = 0; (at = step.find('~', at)) != step.npos; ++at) {
      const char next = at + 1 < step.size() ? step[at + 1] : '\0';
      if (next == '0' || next == '1') step.replace(at, 2, next == '0' ? "~" : "/");
    }
  }
  return steps;
}

Branch make_tree(const std::vector<Row>& rows) {
  Branch root;
  for (const Row& row : rows) {
    Branch* branch = &root;
    branch->count(row);
    for (const std::string& step : steps_of(row)) {
      branch = &branch->child(step);
      branch->count(row);
    }
    branch->entry = &row;
  }
  return root;
}

bool is_number(const std::string& step) {
  return !step.empty() && std::ranges::all_of(step, [](char c) { return c >= '0' && c <= '9'; });
}

// Steps that are numbers, as those of layers, follow each other: a file may have them as 0, 1, 10,
// 11, 2. The others keep their places. kDepthMax bounds the recursion.
void sort_numbers(Branch& branch) {
  std::vector<size_t> places;
  for (size_t i = 0; i < branch.children.size(); ++i) {
    if (is_number(branch.children[i]->name)) places.push_back(i);
    sort_numbers(*branch.children[i]);
  }
  std::vector<std::unique_ptr<Branch>> numbers;
  for (const size_t place : places) numbers.push_back(std::move(branch.children[place]));
  std::ranges::stable_sort(
      numbers, [](const auto& a, const auto& b) { return natural_less(a->name, b->name); });
  for (size_t i = 0; i < places.size(); ++i) branch.children[places[i]] = std::move(numbers[i]);
}

std::string what_text(const Branch& branch) {
  if (branch.entry == nullptr || !branch.children.empty()) {
    std::string text = count_text(branch.tensor_count, "tensor");
    if (branch.object_count != 0) text += ", " + count_text(branch.object_count, "object");
    return text;
  }
  const ckpt::TensorEntry* tensor = branch.entry->tensor;
  if (tensor == nullptr) return "object";
  return std::string(name(tensor->dtype)) + " " + shape_text(tensor->shape);
}

// kDepthMax bounds the recursion.
void add_rows(Table& table, const Branch& branch, size_t depth, size_t depth_max) {
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

nlohmann::json to_json(const Branch& branch, size_t depth_left) {
  nlohmann::json json = {{"tensors", branch.tensor_count},
                         {"objects", branch.object_count},
                         {"bytes", branch.count_bytes}};
  if (branch.entry != nullptr && branch.entry->tensor != nullptr) {
    json["dtype"] = name(branch.entry->tensor->dtype);
    json["shape"] = branch.entry->tensor->shape;
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
  const std::vector<Row> rows = list_rows(checkpoint.catalog(), options.filter);
  Branch root = make_tree(rows);
  sort_numbers(root);
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
