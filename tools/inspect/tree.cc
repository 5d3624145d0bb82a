// ckpt-inspect tree: the nested structure that keys spell.
#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <training/key_tree.h>

#include "inspect/commands.h"
#include "inspect/facts.h"
#include "inspect/listing.h"
#include "inspect/page_text.h"

namespace tools::inspect {
namespace {

enum class TreeSort : uint8_t { Key, Size };

struct TreeOptions {
  SourceOptions source;
  KeyFilter filter;
  size_t depth = SIZE_MAX;
  TreeSort sort = TreeSort::Key;

  void declare(CLI::App& app) {
    source.declare(app);
    filter.declare(app);
    add_choice<TreeSort>(app, "--sort", sort, {{"key", TreeSort::Key}, {"size", TreeSort::Size}})
        ->description("As the keys are stored (default), or the largest first, with its share");
    add_value(app, "--depth N", depth, "Only this many levels")->check(kCount);
  }
};

std::string what_text(const optim::KeyBranch& branch, const optim::RankParts& parts) {
  if (branch.row == nullptr || !branch.children.empty()) {
    std::string text = count_text(branch.tensor_count, "tensor");
    if (branch.object_count != 0) text += ", " + count_text(branch.object_count, "object");
    return text;
  }
  const ckpt::TensorEntry* tensor = branch.row->tensor;
  if (tensor == nullptr) return "object";
  return std::string(name(tensor->dtype)) + " " +
         shape_text_of(tensor->shape, parts.find(tensor->key));
}

// Of all bytes, to a tenth of a percent.
std::string percent_text(uint64_t bytes, uint64_t all_bytes) {
  if (bytes == 0) return "-";
  const double percent = 100 * static_cast<double>(bytes) / static_cast<double>(all_bytes);
  std::array<char, 16> text = {};
  std::snprintf(text.data(), text.size(), "%.1f%%", percent);
  return text.data();
}

// A row for each branch; with its share of `all_bytes`, where these are given.
class TreeRows {
 public:
  TreeRows(Table& table, const optim::RankParts& parts, size_t depth_max,
           std::optional<uint64_t> all_bytes)
      : table_(table), parts_(parts), depth_max_(depth_max), all_bytes_(all_bytes) {}

  // optim::kKeyDepthMax bounds the recursion.
  void add(const optim::KeyBranch& branch, size_t depth = 0) {
    if (depth >= depth_max_) return;
    for (const auto& child : branch.children) {
      add_row(*child, depth);
      add(*child, depth + 1);
    }
  }

 private:
  void add_row(const optim::KeyBranch& branch, size_t depth) {
    const bool is_leaf = branch.children.empty();
    const uint64_t bytes = branch.count_bytes;
    std::vector<Cell> cells = {{std::string(2 * depth, ' ') + ckpt::escaped(branch.name),
                                is_leaf ? Paint::Plain : Paint::Bold},
                               {bytes != 0 ? size_text(bytes) : "-"}};
    if (all_bytes_) {
      cells.push_back({percent_text(bytes, *all_bytes_)});
      cells.push_back({bar(bytes, *all_bytes_), Paint::Cyan});
    }
    cells.push_back({what_text(branch, parts_), is_leaf ? Paint::Cyan : Paint::Dim});
    table_.add_row(std::move(cells));
  }

  Table& table_;
  const optim::RankParts& parts_;
  size_t depth_max_;
  std::optional<uint64_t> all_bytes_;
};

void print_tree(Console& console, const TreeOptions& options, const optim::KeyBranch& root,
                const optim::RankParts& parts) {
  const bool has_shares = options.sort == TreeSort::Size;
  std::vector<Column> columns = {{.title = "KEY", .can_shorten = true}, {"BYTES", Align::Right}};
  if (has_shares) {
    columns.push_back({"SHARE", Align::Right});
    columns.push_back({.title = "", .drop_order = 2});
  }
  columns.push_back({.title = "", .drop_order = has_shares ? 1 : 0});
  Table table(std::move(columns));
  TreeRows(table, parts, options.depth, has_shares ? std::optional(root.count_bytes) : std::nullopt)
      .add(root);
  table.print(console);
}

std::string words_of(optim::ByteUse use) {
  std::string text(name(use));
  std::ranges::replace(text, '_', ' ');
  return text;
}

// Who uses the bytes above.
void print_uses(Console& console, const std::vector<optim::UsedBytes>& uses, uint64_t all_bytes) {
  if (all_bytes == 0) return;
  Table table({{"BYTES OF"},
               {"", Align::Right},
               {"SHARE", Align::Right},
               {.title = "", .drop_order = 1},
               {""}});
  for (const optim::UsedBytes& use : uses) {
    const bool is_object = use.use == optim::ByteUse::Objects;
    table.add_row({{words_of(use.use), Paint::Bold},
                   {use.count_bytes != 0 ? size_text(use.count_bytes) : "-"},
                   {percent_text(use.count_bytes, all_bytes)},
                   {bar(use.count_bytes, all_bytes), Paint::Cyan},
                   {count_text(use.count, is_object ? "object" : "tensor"), Paint::Dim}});
  }
  console.out() << '\n';
  table.print(console);
}

// What is in the files beside them.
void print_rest(Console& console, const ckpt::Catalog& catalog, uint64_t used_bytes) {
  uint64_t all_bytes = 0;
  for (const ckpt::FileEntry& file : catalog.files) all_bytes += file.count_bytes;
  if (all_bytes <= used_bytes) return;
  console.print_text(size_text(used_bytes) + " of " + size_text(all_bytes) + " in " +
                     count_text(catalog.files.size(), "data file") +
                     "; the rest is metadata, padding, and what is stored twice");
}

nlohmann::json uses_json(const std::vector<optim::UsedBytes>& uses) {
  return json_list(uses, [](const optim::UsedBytes& use) -> nlohmann::json {
    return {{"use", name(use.use)}, {"count", use.count}, {"bytes", use.count_bytes}};
  });
}

nlohmann::json branch_json(const optim::KeyBranch& branch, const optim::RankParts& parts,
                           size_t depth_left) {
  nlohmann::json json = {{"tensors", branch.tensor_count},
                         {"objects", branch.object_count},
                         {"bytes", branch.count_bytes}};
  if (branch.row != nullptr && branch.row->tensor != nullptr) {
    json["dtype"] = name(branch.row->tensor->dtype);
    json["shape"] = branch.row->tensor->shape;
    if (const auto* part = parts.find(branch.row->tensor->key)) json["part_of"] = to_json(*part);
  }
  if (branch.children.empty() || depth_left == 0) return json;
  json["children"] = nlohmann::json::array();
  for (const auto& child : branch.children) {
    nlohmann::json node = branch_json(*child, parts, depth_left - 1);
    node["name"] = json_text(child->name);
    json["children"].push_back(std::move(node));
  }
  return json;
}

int run(const TreeOptions& options, Console& console) {
  const optim::OpenedTraining checkpoint = options.source.open_to_list(console);
  const auto rows = optim::list_rows(checkpoint.catalog(), options.filter.selection());
  optim::KeyBranch root = optim::make_key_tree(rows);
  if (options.sort == TreeSort::Size) sort_by_size(root);
  const optim::RankParts parts(checkpoint);
  const std::vector<optim::UsedBytes> uses = optim::sum_uses(rows, checkpoint);
  if (console.options().json) {
    nlohmann::json document = json_document();
    document["format"] = name(checkpoint.catalog().format);
    add_missing_files(document, checkpoint.catalog());
    document["tree"] = branch_json(root, parts, options.depth);
    document["uses"] = uses_json(uses);
    print_json(console, document);
    return 0;
  }
  print_tree(console, options, root, parts);
  print_uses(console, uses, root.count_bytes);
  if (options.filter.is_everything()) print_rest(console, checkpoint.catalog(), root.count_bytes);
  print_parts(console, checkpoint, parts);
  return 0;
}

}  // namespace

Command make_tree_command() {
  return make_command<TreeOptions>(
      {.name = "tree",
       .description =
           "Shows the nested structure, with tensors and bytes below each step, and who uses "
           "the bytes: weights, masters, moments, objects.",
       .examples = {"ckpt-inspect tree ckpt/", "ckpt-inspect tree ckpt/ --sort size --depth 3",
                    "ckpt-inspect tree model.pt --include '/optimizer/*' --json"}},
      run);
}

}  // namespace tools::inspect
