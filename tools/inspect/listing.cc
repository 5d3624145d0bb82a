#include "inspect/listing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <common/table.h>
#include <common/text.h>

#include "inspect/facts.h"

namespace tools::inspect {
namespace {

std::string where_text(const std::vector<const FileName*>& files) {
  if (files.empty()) return "-";
  std::string text = ckpt::escaped(*files.front()->path);
  if (files.size() > 1) text += " +" + std::to_string(files.size() - 1);
  return text;
}

void add_json_shape(JsonStream& json, const ckpt::Extents& shape) {
  json.begin_array();
  for (const uint64_t size : shape) json.number(size);
  json.end_array();
}

void add_json_part(JsonStream& json, const ckpt::TensorPart& part) {
  json.begin_object();
  if (part.shape) add_json_shape(json.key("shape"), *part.shape);
  json.key("text").text(part.words);
  json.key("whole").quoted(part.is_whole ? "true" : "false");
  json.end_object();
}

void add_json_row(JsonStream& json, const optim::CatalogRow& row, const ckpt::TensorPart* part,
                  FileNames& names) {
  json.begin_object();
  if (row.count_bytes) json.key("bytes").number(*row.count_bytes);
  if (row.tensor != nullptr) {
    json.key("chunks").number(row.tensor->chunks.size());
    json.key("dtype").text(name(row.tensor->dtype));
  }
  if (!row.file().empty()) json.key("file").text(row.file());
  json.key("files");
  json.quoted(names.json_of(row, json));
  json.key("key").text(row.key());
  if (row.tensor != nullptr) {
    json.key("kind").text(name(optim::role_of(*row.tensor)));
    if (part != nullptr) add_json_part(json.key("part_of"), *part);
    add_json_shape(json.key("shape"), row.tensor->shape);
  }
  json.end_object();
}

}  // namespace

std::string key_text(const std::string& key) { return ckpt::printed_key(key); }

FileNames::FileNames(const ckpt::Catalog& catalog) : ranks_(catalog.files.size()) {
  std::vector<uint32_t> order(catalog.files.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto path_of = [&](uint32_t file) -> const std::string& {
    return catalog.files[file].path;
  };
  std::ranges::stable_sort(order, {}, path_of);
  for (const uint32_t file : order) {
    ranks_[file] = static_cast<uint32_t>(names_.size());
    names_.push_back({&path_of(file), JsonStream::quote(path_of(file))});
  }
}

void FileNames::find(const optim::CatalogRow& row) {
  found_.clear();
  if (row.tensor != nullptr) {
    for (const ckpt::Chunk& chunk : row.tensor->chunks) found_.push_back(ranks_[chunk.region.file]);
  } else {
    found_.push_back(ranks_[row.object->region ? row.object->region->file : 0]);
  }
}

const std::vector<const FileName*>& FileNames::of(const optim::CatalogRow& row) {
  const bool names_its_file =
      row.tensor == nullptr && !row.object->region && !row.object->file.empty();
  if (names_its_file) {
    own_ = {&row.object->file, JsonStream::quote(row.object->file)};
    before_.clear();
    json_.clear();
    result_ = {&own_};
    return result_;
  }
  find(row);
  if (found_ == before_ && !found_.empty()) return result_;
  std::swap(found_, before_);
  json_.clear();
  result_.clear();
  sorted_ = before_;
  std::ranges::sort(sorted_);
  sorted_.erase(std::unique(sorted_.begin(), sorted_.end()), sorted_.end());
  for (const uint32_t rank : sorted_) result_.push_back(&names_[rank]);
  return result_;
}

const std::string& FileNames::json_of(const optim::CatalogRow& row, const JsonStream& json) {
  const std::vector<const FileName*>& files = of(row);
  if (!json_.empty()) return json_;
  std::vector<std::string_view> quoted;
  for (const FileName* file : files) quoted.emplace_back(file->json);
  json_ = json.array_text(quoted);
  return json_;
}

std::vector<optim::Subject> take_from_state(const optim::OpenedTraining& checkpoint,
                                            KeyFilter& filter) {
  std::vector<optim::Subject> found;
  std::set<std::string> keys;
  const auto unmatched = optim::unmatched_patterns(checkpoint.catalog(), filter.selection());
  const auto is_unmatched = [&](const std::string& typed) {
    return std::ranges::find(unmatched, typed, &optim::UnmatchedPattern::typed) != unmatched.end();
  };
  std::erase_if(filter.include, [&](const std::string& typed) {
    if (!is_unmatched(typed)) return false;
    try {
      auto named = find_subjects(checkpoint, {&typed, 1}, optim::SubjectNames::Logical);
      std::erase_if(named, [](const optim::Subject& subject) { return subject.slice.has_value(); });
      for (optim::Subject& subject : named) {
        if (keys.insert(subject.key).second) found.push_back(std::move(subject));
      }
      return !named.empty();
    } catch (const ckpt::Error& error) {
      if (error.code() == ckpt::ErrorCode::IoFailure) throw;
      return false;
    }
  });
  std::erase_if(filter.exclude, [&](const std::string& typed) {
    const size_t before = found.size();
    if (!found.empty()) keep_selected(found, {{}, {typed}});
    return found.size() != before && is_unmatched(typed);
  });
  return found;
}

void add_missing_files(nlohmann::json& document, const ckpt::Catalog& catalog) {
  for (const std::string& path : missing_files(catalog)) {
    document["missing_files"].push_back(json_text(path));
  }
}

void print_rows(Console& console, const Rows& listed) {
  Table table({{.title = "KEY", .can_shorten = true, .is_name = true},
               {"DTYPE"},
               {"SHAPE"},
               {"BYTES", Align::Right},
               {.title = "CHUNKS", .align = Align::Right, .drop_order = 2},
               {.title = "WHERE", .drop_order = 1}});
  FileNames names(listed.catalog);
  for (size_t i = 0; i < std::min(listed.limit, listed.rows.size()); ++i) {
    const optim::CatalogRow& row = listed.rows[i];
    const bool is_tensor = row.tensor != nullptr;
    table.add_row({{key_text(row.key()), Paint::Bold},
                   {is_tensor ? std::string(name(row.tensor->dtype)) : "object", Paint::Cyan},
                   {is_tensor ? shape_text_of(row.tensor->shape, listed.part_of(row)) : "-"},
                   {row.count_bytes ? size_text(*row.count_bytes) : "-"},
                   {is_tensor ? std::to_string(row.tensor->chunks.size()) : "-"},
                   {where_text(names.of(row)), Paint::Dim}});
  }
  table.print(console);
}

void add_json_rows(JsonStream& json, const Rows& listed, bool tensors) {
  FileNames names(listed.catalog);
  json.begin_array();
  for (size_t i = 0; i < std::min(listed.limit, listed.rows.size()); ++i) {
    const optim::CatalogRow& row = listed.rows[i];
    if ((row.tensor != nullptr) != tensors) continue;
    add_json_row(json, row, listed.part_of(row), names);
  }
  json.end_array();
}

}  // namespace tools::inspect
