// ckpt-inspect show: chunks, statistics and first values of a tensor; the tree of an object.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <ostream>

#include <ckpt/error.h>
#include <ckpt/statistics.h>
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

// What a KEY names: a row of the catalog, or a value inside a torch.save file.
struct Subject {
  std::string file;
  std::string key;
  const ckpt::TensorEntry* tensor = nullptr;
  const ckpt::ObjectEntry* object = nullptr;
  std::optional<ckpt::Value> value = std::nullopt;
};

// Values inside torch.save files, deeper than the objects that the catalog lists.
std::vector<Subject> find_values(const ckpt::Checkpoint& checkpoint, const std::string& typed,
                                 ckpt::KeyMatch match) {
  std::vector<Subject> found;
  const bool is_single = is_single_file(checkpoint.catalog());
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document == nullptr) continue;
    const bool is_qualified = typed.starts_with(file.path + ":");
    const std::string key = is_qualified ? typed.substr(file.path.size() + 1) : typed;
    for (const NamedValue& value : values_named(document->tree.root(), key, match)) {
      found.push_back({is_single ? "" : file.path, value.pointer, nullptr, nullptr, value.value});
    }
  }
  return found;
}

// The rows that a key names best, and how well. An object without a region is a part of its file's
// value tree.
std::vector<Subject> find_rows(const std::vector<Row>& rows, const ckpt::KeyPattern& pattern,
                               ckpt::KeyMatch& best) {
  std::vector<Subject> found;
  for (const Row& row : rows) {
    if (row.object != nullptr && !row.object->region) continue;
    const ckpt::KeyMatch match = pattern.match({row.file(), row.key()});
    if (match == ckpt::KeyMatch::None || match < best) continue;
    if (match > best) found.clear();
    best = match;
    found.push_back({row.file(), row.key(), row.tensor, row.object});
  }
  return found;
}

// "weight[0:4, :8]" without its brackets.
std::string without_slice(const std::string& typed) {
  const size_t open = typed.rfind('[');
  const bool is_slice = open != typed.npos && typed.ends_with(']') &&
                        typed.find_first_not_of("0123456789:, -", open + 1) == typed.size() - 1;
  return is_slice ? typed.substr(0, open) : typed;
}

// Also values inside torch.save files may have been meant.
[[noreturn]] void refuse_unknown_value(const ckpt::Checkpoint& checkpoint,
                                       std::vector<ckpt::KeyName> names, const std::string& typed) {
  const bool is_single = is_single_file(checkpoint.catalog());
  std::deque<std::vector<std::string>> pointers;  // what names point into
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document == nullptr) continue;
    for (const std::string& pointer : pointers.emplace_back(pointers_near(document->tree.root()))) {
      names.push_back({is_single ? std::string_view() : file.path, pointer});
    }
  }
  ckpt::refuse_unknown_key(typed, names);
}

[[noreturn]] void throw_not_found(const ckpt::Checkpoint& checkpoint, const std::vector<Row>& rows,
                                  const std::string& typed) {
  const std::string key = without_slice(typed);
  std::vector<ckpt::KeyName> names = names_of(rows);
  const ckpt::KeyPattern pattern(key);
  const bool is_slice = key != typed && std::ranges::any_of(names, [&](const ckpt::KeyName& name) {
                          return pattern.match(name) != ckpt::KeyMatch::None;
                        });
  if (!is_slice) refuse_unknown_value(checkpoint, std::move(names), typed);
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = typed},
                    "slices are not built into this version",
                    "show '" + ckpt::escaped(key) + "' gives statistics and the first values");
}

// Keys as they are spelled before other spellings, globs last; rows before what lies in them.
std::vector<Subject> find_subjects(const ckpt::Checkpoint& checkpoint, const std::vector<Row>& rows,
                                   const std::string& typed) {
  ckpt::KeyMatch best = ckpt::KeyMatch::None;
  std::vector<Subject> found = find_rows(rows, ckpt::KeyPattern(typed), best);
  for (const ckpt::KeyMatch match : {ckpt::KeyMatch::Exact, ckpt::KeyMatch::Spelling}) {
    if (best >= match) return found;
    std::vector<Subject> values = find_values(checkpoint, typed, match);
    if (!values.empty()) return values;
  }
  if (found.empty()) throw_not_found(checkpoint, rows, typed);
  return found;
}

// The tensor in its file's value tree; only torch.save files have one.
std::optional<ckpt::Value> tensor_value(const Subject& subject,
                                        const ckpt::Checkpoint& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (catalog.format != ckpt::Format::Torch) return std::nullopt;
  const std::string& file = subject.file.empty() ? catalog.files.at(0).path : subject.file;
  const ckpt::Document* document = checkpoint.document(file);
  return document == nullptr ? std::nullopt : value_at(document->tree.root(), subject.key);
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

// What the KEYs name, or without one every row.
std::vector<Subject> named_subjects(const ckpt::Checkpoint& checkpoint,
                                    const std::vector<Row>& rows,
                                    const std::vector<std::string>& keys) {
  std::vector<Subject> subjects;
  for (const std::string& key : keys) {
    const std::vector<Subject> found = find_subjects(checkpoint, rows, key);
    subjects.insert(subjects.end(), found.begin(), found.end());
  }
  for (const Row& row : rows) {
    const bool is_shown = row.tensor != nullptr || row.object->region;
    if (keys.empty() && is_shown) {
      subjects.push_back({row.file(), row.key(), row.tensor, row.object});
    }
  }
  return subjects;
}

// Of these what --include and --exclude select. Throws NotFound where that is nothing.
void keep_selected(std::vector<Subject>& subjects, const KeyFilter& filter) {
  if (filter.is_everything()) return;
  std::vector<ckpt::KeyName> names;
  for (const Subject& subject : subjects) names.push_back({subject.file, subject.key});
  ckpt::KeySelection selection = filter.selection();
  selection.resolve(names);
  selection.refuse_missing(names);
  std::vector<Subject> kept;
  for (const Subject& subject : subjects) {
    if (selection.accepts(subject.file, subject.key)) kept.push_back(subject);
  }
  subjects = std::move(kept);
  if (!subjects.empty()) return;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + filter.text(),
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
  const std::vector<Row> rows = list_rows(checkpoint.catalog(), {});
  std::vector<Subject> subjects = named_subjects(checkpoint, rows, options.keys);
  keep_selected(subjects, options.filter);
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
