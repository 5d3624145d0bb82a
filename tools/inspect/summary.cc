// ckpt-inspect PATH: one page about a checkpoint.
#include <map>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/listing.h"
#include "inspect/value_at.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

constexpr size_t kRowsShown = 20;
constexpr size_t kFilesShown = 12;

struct SummaryOptions {
  SourceOptions source;
  void declare(CLI::App& app) { source.declare(app); }
};

struct Total {
  uint64_t count = 0;
  uint64_t count_bytes = 0;
  void add(uint64_t bytes) {
    ++count;
    count_bytes += bytes;
  }
};

// What the page says; empty where the checkpoint does not say.
struct Summary {
  std::vector<std::pair<std::string, std::string>> writers;  // a format and its version
  std::vector<std::pair<std::string, int64_t>> sizes;  // parallel sizes, under the names of args
  std::map<std::string, Total> kinds;
  std::map<std::string, Total> dtypes;
};

// Where a tensor belongs, by the names that Megatron and the usual training loops give.
std::string kind_of(const ckpt::TensorEntry& tensor) {
  const auto contains = [&](std::string_view text) {
    return tensor.key.find(text) != std::string::npos;
  };
  const bool is_optimizer_file = tensor.file.find("layer_wise_optimizer_") != std::string::npos ||
                                 tensor.file.find("distrib_optim") != std::string::npos;
  if (is_optimizer_file || tensor.key.starts_with("/optimizer") ||
      tensor.key.starts_with("optimizer.") || contains(".optimizer.")) {
    return "optimizer state";
  }
  if (contains("rng_state") || contains("rng_tracker")) return "rng state";
  return tensor.file == "common.pt" ? "common state" : "model";
}

// The state that Megatron keeps beside the tensors: the root of the file that has `args`.
std::optional<ckpt::Value> common_state_of(const ckpt::Checkpoint& checkpoint) {
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document != nullptr && value_at(document->tree.root(), "/args/@world_size")) {
      return document->tree.root();
    }
  }
  return std::nullopt;
}

void add_sizes(const ckpt::Value& common_state, Summary& summary) {
  for (const char* name : {"tensor_model_parallel_size", "pipeline_model_parallel_size",
                           "virtual_pipeline_model_parallel_size", "context_parallel_size",
                           "expert_model_parallel_size", "expert_tensor_parallel_size",
                           "data_parallel_size", "world_size"}) {
    const auto size = value_at(common_state, std::string("/args/@") + name);
    if (size && size->is(ckpt::Kind::Int)) summary.sizes.emplace_back(name, size->as_int());
  }
}

std::string version_text(const std::optional<ckpt::Value>& version) {
  if (!version) return "unknown";
  return version->is(ckpt::Kind::Str) ? ckpt::escaped(version->text()) : value_text(*version);
}

void add_writers(const ckpt::Checkpoint& checkpoint, const std::optional<ckpt::Value>& common_state,
                 Summary& summary) {
  if (common_state) {
    summary.writers.emplace_back("Megatron-LM checkpoint_version",
                                 version_text(value_at(*common_state, "/checkpoint_version")));
  }
  if (const ckpt::ValueTree* metadata = checkpoint.dist_metadata()) {
    summary.writers.emplace_back("torch.distributed.checkpoint metadata",
                                 version_text(value_at(metadata->root(), "/@version")));
  }
}

Summary summarize(const ckpt::Checkpoint& checkpoint) {
  Summary summary;
  const std::optional<ckpt::Value> common_state = common_state_of(checkpoint);
  if (common_state) add_sizes(*common_state, summary);
  add_writers(checkpoint, common_state, summary);
  for (const ckpt::TensorEntry& tensor : checkpoint.catalog().tensors) {
    summary.kinds[kind_of(tensor)].add(count_bytes(tensor));
    summary.dtypes[std::string(name(tensor.dtype))].add(count_bytes(tensor));
  }
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    summary.kinds["objects"].add(object.region ? object.region->bytes.count_bytes : 0);
  }
  return summary;
}

Total total_of_files(const ckpt::Catalog& catalog) {
  Total total;
  for (const ckpt::FileEntry& file : catalog.files) total.add(file.count_bytes);
  return total;
}

// "data_parallel_size" is shown as "data".
std::string short_name(std::string name) {
  for (const std::string_view suffix : {"_model_parallel_size", "_parallel_size", "_size"}) {
    if (!name.ends_with(suffix)) continue;
    name.resize(name.size() - suffix.size());
    break;
  }
  for (char& character : name) character = character == '_' ? ' ' : character;
  return name;
}

std::string sizes_text(const Summary& summary) {
  std::string text;
  for (const auto& [name, size] : summary.sizes) {
    text += (text.empty() ? "" : ", ") + short_name(name) + " " + std::to_string(size);
  }
  return text;
}

// What was opened: the file, or the folder that a root's tracker led to.
std::string path_of(const ckpt::Checkpoint& checkpoint) {
  const bool is_file = is_single_file(checkpoint.catalog()) ||
                       checkpoint.catalog().format == ckpt::Format::Safetensors;
  const auto& folder = checkpoint.folder();
  return (is_file ? folder / checkpoint.catalog().files.at(0).path : folder).string();
}

void print_facts(Console& console, const ckpt::Checkpoint& checkpoint, const Summary& summary) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const Total files = total_of_files(catalog);
  Table table({{}, {.can_shorten = true}});
  const auto add = [&](const char* what, const std::string& text) {
    table.add_row({{what, Paint::Bold}, {text}});
  };
  add("checkpoint", ckpt::escaped(path_of(checkpoint)));
  add("format", std::string(name(catalog.format)));
  if (catalog.iteration) add("iteration", std::to_string(*catalog.iteration));
  for (const auto& [writer, version] : summary.writers) add("writer", writer + " " + version);
  if (!summary.sizes.empty()) add("parallel", sizes_text(summary));
  add("files", count_text(files.count, "file") + ", " + size_text(files.count_bytes));
  table.print(console);
}

void print_totals(Console& console, const std::string& title,
                  const std::map<std::string, Total>& totals) {
  Table table({{title}, {"COUNT", Align::Right}, {"BYTES", Align::Right}});
  for (const auto& [name, total] : totals) {
    table.add_row({{name},
                   {std::to_string(total.count)},
                   {total.count_bytes != 0 ? size_text(total.count_bytes) : "-"}});
  }
  console.out() << '\n';
  table.print(console);
}

void print_files(Console& console, const ckpt::Catalog& catalog) {
  Table table({{.title = "FILE", .can_shorten = true}, {"BYTES", Align::Right}});
  for (size_t i = 0; i < std::min(kFilesShown, catalog.files.size()); ++i) {
    table.add_row(
        {{ckpt::escaped(catalog.files[i].path)}, {size_text(catalog.files[i].count_bytes)}});
  }
  console.out() << '\n';
  table.print(console);
  if (catalog.files.size() > kFilesShown) {
    console.out() << "... " << catalog.files.size() - kFilesShown << " more files\n";
  }
}

void print_summary(Console& console, const ckpt::Checkpoint& checkpoint, const std::string& path) {
  const Summary summary = summarize(checkpoint);
  print_facts(console, checkpoint, summary);
  print_totals(console, "KIND", summary.kinds);
  print_totals(console, "DTYPE", summary.dtypes);
  print_files(console, checkpoint.catalog());
  const std::vector<Row> rows = list_rows(checkpoint.catalog(), {});
  console.out() << '\n';
  print_rows(console, {checkpoint.catalog(), rows, kRowsShown});
  if (rows.size() > kRowsShown) {
    console.out() << "... " << rows.size() - kRowsShown << " more: ckpt-inspect ls "
                  << ckpt::escaped(path) << '\n';
  }
}

nlohmann::json totals_to_json(const std::map<std::string, Total>& totals) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, total] : totals) {
    json[name] = {{"count", total.count}, {"bytes", total.count_bytes}};
  }
  return json;
}

void print_summary_as_json(Console& console, const ckpt::Checkpoint& checkpoint) {
  const Summary summary = summarize(checkpoint);
  const ckpt::Catalog& catalog = checkpoint.catalog();
  nlohmann::json document = json_document();
  document["path"] = json_text(path_of(checkpoint));
  document["format"] = name(catalog.format);
  if (catalog.iteration) document["iteration"] = *catalog.iteration;
  document["writers"] = nlohmann::json::object();
  for (const auto& [writer, version] : summary.writers) document["writers"][writer] = version;
  document["parallel"] = nlohmann::json::object();
  for (const auto& [size_name, size] : summary.sizes) document["parallel"][size_name] = size;
  document["kinds"] = totals_to_json(summary.kinds);
  document["dtypes"] = totals_to_json(summary.dtypes);
  document["files"] = nlohmann::json::array();
  for (const ckpt::FileEntry& file : catalog.files) {
    document["files"].push_back({{"path", json_text(file.path)}, {"bytes", file.count_bytes}});
  }
  add_missing_files(document, catalog);
  print_json(console, document);
}

int run(const SummaryOptions& options, Console& console) {
  const ckpt::Checkpoint checkpoint = options.source.open_to_list(console);
  if (console.options().json) {
    print_summary_as_json(console, checkpoint);
  } else {
    print_summary(console, checkpoint, options.source.path);
  }
  return 0;
}

}  // namespace

Command make_summary_command() { return make_command<SummaryOptions>({"", "Summary."}, run); }

}  // namespace tools::inspect
