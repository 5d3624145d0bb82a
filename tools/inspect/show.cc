// ckpt-inspect show: chunks, statistics and first values of a tensor; the tree of an object.
#include <algorithm>
#include <filesystem>
#include <ostream>

#include <ckpt/error.h>
#include <ckpt/statistics.h>
#include <common/json.h>
#include <common/key_filter.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <optim/subjects.h>
#include <optim/value_at.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/listing.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using optim::Subject;

struct ShowOptions {
  SourceOptions source;
  std::vector<std::string> keys;
  KeyFilter filter;

  void declare(CLI::App& app) {
    source.declare(app);
    app.add_option("KEY", keys,
                   "A key as ls prints it, or a glob; FILE:KEY if several files have the key; dots "
                   "and slashes are "
                   "the same")
        ->option_text("...");
    filter.declare(app);
  }
};

// The tensor in its file's value tree; only torch.save files have one.
std::optional<ckpt::Value> tensor_value(const Subject& subject,
                                        const ckpt::Checkpoint& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (catalog.format != ckpt::Format::Torch) return std::nullopt;
  const std::string& file = subject.file.empty() ? catalog.files.at(0).path : subject.file;
  const ckpt::Document* document = checkpoint.document(file);
  return document == nullptr ? std::nullopt : optim::value_at(document->tree.root(), subject.key);
}

std::vector<ckpt::TensorAttribute> tensor_attributes(const Subject& subject,
                                                     const ckpt::Checkpoint& checkpoint) {
  const auto value = tensor_value(subject, checkpoint);
  const auto tensor = value ? ckpt::as_tensor(*value) : std::nullopt;
  if (!tensor) return {};
  return attributes_of(value->tree(), *tensor);
}

std::string box_text(const ckpt::Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(box.offsets[i]) + ":" +
            std::to_string(box.offsets[i] + box.sizes[i]);
  }
  return text + "]";
}

void print_chunks(Console& console, const ckpt::TensorEntry& tensor, const ckpt::Catalog& catalog) {
  constexpr size_t kChunksMax = 20;
  const size_t limit = console.options().verbose ? SIZE_MAX : kChunksMax;
  Table table({{"CHUNK"},
               {.title = "FILE", .can_shorten = true},
               {"OFFSET", Align::Right},
               {"BYTES", Align::Right}});
  for (size_t i = 0; i < std::min(limit, tensor.chunks.size()); ++i) {
    const ckpt::Chunk& chunk = tensor.chunks[i];
    table.add_row({{box_text(chunk.box)},
                   {ckpt::escaped(catalog.files[chunk.region.file].path)},
                   {std::to_string(chunk.region.bytes.offset_bytes)},
                   {std::to_string(chunk.region.bytes.count_bytes)}});
  }
  table.print(console, "  ");
  if (tensor.chunks.size() > limit) {
    console.out() << "  ... " << tensor.chunks.size() - limit << " more (--verbose)\n";
  }
}

std::string values_text(const ckpt::Statistics& statistics) {
  std::string text;
  for (const std::string& value : statistics.first_values)
    text += (text.empty() ? "" : ", ") + value;
  const bool has_more = statistics.first_values.size() < statistics.element_count;
  return has_more ? text + ", ..." : text;
}

void print_tensor(Console& console, const Subject& subject, const ckpt::Checkpoint& checkpoint) {
  const ckpt::TensorEntry& tensor = *subject.tensor;
  const ckpt::Statistics statistics = make_statistics(tensor, checkpoint);
  Table facts({{}, {.can_shorten = true}});
  if (!tensor.file.empty()) facts.add_row({{"file"}, {ckpt::escaped(tensor.file)}});
  facts.add_row({{"dtype"}, {std::string(name(tensor.dtype))}});
  facts.add_row({{"shape"}, {shape_text(tensor.shape)}});
  facts.add_row({{"bytes"}, {std::to_string(count_bytes(tensor))}});
  facts.add_row({{"elements"}, {std::to_string(statistics.element_count)}});
  for (const ckpt::TensorAttribute& attribute : tensor_attributes(subject, checkpoint)) {
    facts.add_row({{"@" + ckpt::escaped(attribute.name)}, {value_text(attribute.value)}});
  }
  if (const auto& moments = statistics.moments) {
    facts.add_row({{"min"}, {number_text(moments->min)}});
    facts.add_row({{"max"}, {number_text(moments->max)}});
    facts.add_row({{"mean"}, {number_text(moments->mean)}});
    facts.add_row({{"std"}, {number_text(moments->std)}});
  }
  facts.add_row({{"zeros"}, {std::to_string(statistics.zero_count)}});
  facts.add_row({{"NaN"}, {std::to_string(statistics.nan_count)}});
  facts.add_row({{"Inf"}, {std::to_string(statistics.inf_count)}});
  facts.add_row({{"values"}, {values_text(statistics)}});
  facts.print(console, "  ");
  print_chunks(console, tensor, checkpoint.catalog());
}

nlohmann::json tensor_to_json(const Subject& subject, const ckpt::Checkpoint& checkpoint) {
  const ckpt::TensorEntry& tensor = *subject.tensor;
  const ckpt::Statistics statistics = make_statistics(tensor, checkpoint);
  nlohmann::json json = {
      {"dtype", name(tensor.dtype)},      {"shape", tensor.shape},
      {"bytes", count_bytes(tensor)},     {"elements", statistics.element_count},
      {"zeros", statistics.zero_count},   {"nan", statistics.nan_count},
      {"inf", statistics.inf_count},      {"first_values", statistics.first_values},
      {"chunks", nlohmann::json::array()}};
  for (const ckpt::TensorAttribute& attribute : tensor_attributes(subject, checkpoint)) {
    json["attributes"][json_text(attribute.name)] = value_to_json(attribute.value);
  }
  if (const auto& moments = statistics.moments) {
    json.update({{"min", moments->min},
                 {"max", moments->max},
                 {"mean", moments->mean},
                 {"std", moments->std}});
  }
  for (const ckpt::Chunk& chunk : tensor.chunks) {
    const ckpt::FileEntry& file = checkpoint.catalog().files[chunk.region.file];
    json["chunks"].push_back({{"offsets", chunk.box.offsets},
                              {"sizes", chunk.box.sizes},
                              {"file", json_text(file.path)},
                              {"offset_bytes", chunk.region.bytes.offset_bytes},
                              {"bytes", chunk.region.bytes.count_bytes}});
  }
  return json;
}

// The archive of an object must live as long as the value that is shown.
template <class Use>
void with_value(const Subject& subject, const ckpt::Checkpoint& checkpoint, Use use) {
  if (subject.object == nullptr) return use(*subject.value);
  const ckpt::Document document = checkpoint.read_object(*subject.object);
  use(document.tree.root());
}

void print_subject(Console& console, const Subject& subject, const ckpt::Checkpoint& checkpoint) {
  console.print_text(console.paint(Paint::Bold, key_text(subject.key)));
  if (subject.tensor != nullptr) return print_tensor(console, subject, checkpoint);
  TreeLimits limits;
  if (console.options().verbose) limits = {SIZE_MAX, SIZE_MAX};
  with_value(subject, checkpoint,
             [&](const ckpt::Value& value) { print_tree(console, value, limits); });
}

nlohmann::json subject_to_json(const Subject& subject, const ckpt::Checkpoint& checkpoint) {
  nlohmann::json json = {{"key", json_text(subject.key)}};
  if (!subject.file.empty()) json["file"] = json_text(subject.file);
  if (subject.tensor != nullptr) {
    json["tensor"] = tensor_to_json(subject, checkpoint);
  } else {
    with_value(subject, checkpoint,
               [&](const ckpt::Value& value) { json["object"] = value_to_json(value); });
  }
  return json;
}

// What KEYs, --include and --exclude name. Throws NotFound where that is nothing.
std::vector<Subject> find_selected(const ckpt::Checkpoint& checkpoint, const ShowOptions& options) {
  std::vector<Subject> subjects = optim::find_subjects(checkpoint, options.keys);
  if (options.filter.is_everything()) return subjects;
  keep_selected(subjects, options.filter.selection());
  if (!subjects.empty()) return subjects;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + options.filter.text(),
                    "ckpt-inspect ls lists the keys");
}

ckpt::Checkpoint open_source(const ShowOptions& options) {
  try {
    return options.source.open();
  } catch (ckpt::Error& error) {
    std::error_code unknown;
    for (const std::string& key : options.keys) {
      if (error.code() != ckpt::ErrorCode::NotFound || !std::filesystem::exists(key, unknown))
        continue;
      throw error.hinted("the path comes first: ckpt-inspect show " + ckpt::escaped(key) + " " +
                         ckpt::escaped(options.source.path));
    }
    throw;
  }
}

int run(const ShowOptions& options, Console& console) {
  if (options.keys.empty() && options.filter.include.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "a KEY or --include is required",
                      "ckpt-inspect ls lists the keys");
  }
  const ckpt::Checkpoint checkpoint = open_source(options);
  const std::vector<Subject> subjects = find_selected(checkpoint, options);
  if (!console.options().json) {
    for (const Subject& subject : subjects) print_subject(console, subject, checkpoint);
    return 0;
  }
  nlohmann::json document = json_document();
  document["entries"] = nlohmann::json::array();
  for (const Subject& subject : subjects) {
    document["entries"].push_back(subject_to_json(subject, checkpoint));
  }
  print_json(console, document);
  return 0;
}

}  // namespace

Command make_show_command() {
  return make_command<ShowOptions>(
      {.name = "show",
       .description =
           "Shows tensors with chunks, statistics and first values, and objects as trees.",
       .examples = {"ckpt-inspect show ckpt/ embedding.word_embeddings.weight",
                    "ckpt-inspect show ckpt/ common.pt:/args",
                    "ckpt-inspect show model.pt /model --json"},
       .verbose = "All chunks of tensors, and objects whole"},
      run);
}

}  // namespace tools::inspect
