#include "inspect/listing.h"

#include <algorithm>
#include <tuple>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/table.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

const std::string& path_of(const ckpt::Catalog& catalog, uint32_t file) {
  return catalog.files[file].path;
}

Row make_row(const ckpt::TensorEntry& tensor, const ckpt::Catalog& catalog) {
  Row row{&tensor, nullptr, count_bytes(tensor), {}};
  for (const ckpt::Chunk& chunk : tensor.chunks) {
    row.files.push_back(path_of(catalog, chunk.region.file));
  }
  std::sort(row.files.begin(), row.files.end());
  row.files.erase(std::unique(row.files.begin(), row.files.end()), row.files.end());
  return row;
}

Row make_row(const ckpt::ObjectEntry& object, const ckpt::Catalog& catalog) {
  Row row{nullptr, &object, std::nullopt, {}};
  if (object.region) {
    row.count_bytes = object.region->bytes.count_bytes;
    row.files.push_back(path_of(catalog, object.region->file));
  } else {
    row.files.push_back(object.file.empty() ? path_of(catalog, 0) : object.file);
  }
  return row;
}

std::string where_text(const Row& row) {
  if (row.files.empty()) return "-";
  std::string text = ckpt::escaped(row.files.front());
  if (row.files.size() > 1) text += " +" + std::to_string(row.files.size() - 1);
  return text;
}

nlohmann::json to_json(const Row& row) {
  nlohmann::json json = {{"key", json_text(row.key())}, {"files", nlohmann::json::array()}};
  for (const std::string& file : row.files) json["files"].push_back(json_text(file));
  if (!row.file().empty()) json["file"] = json_text(row.file());
  if (row.count_bytes) json["bytes"] = *row.count_bytes;
  if (row.tensor == nullptr) return json;
  json["dtype"] = name(row.tensor->dtype);
  json["shape"] = row.tensor->shape;
  json["chunks"] = row.tensor->chunks.size();
  return json;
}

}  // namespace

bool is_single_file(const ckpt::Catalog& catalog) {
  return catalog.format == ckpt::Format::Torch && catalog.files.size() == 1 &&
         catalog.files[0].path.find('/') == std::string::npos;
}

std::string key_text(const std::string& key) { return key.empty() ? "(root)" : ckpt::escaped(key); }

std::string qualified_key(const std::string& file, const std::string& key) {
  return file.empty() ? key_text(key) : ckpt::escaped(file) + ":" + key_text(key);
}

std::vector<Row> list_rows(const ckpt::Catalog& catalog, const KeyFilter& filter) {
  std::vector<Row> rows;
  for (const ckpt::TensorEntry& tensor : catalog.tensors) {
    if (filter.accepts(tensor.file, tensor.key)) rows.push_back(make_row(tensor, catalog));
  }
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    if (filter.accepts(object.file, object.key)) rows.push_back(make_row(object, catalog));
  }
  return rows;
}

void sort_rows(std::vector<Row>& rows, Sort sort) {
  if (sort == Sort::Stored) return;
  std::stable_sort(rows.begin(), rows.end(), [sort](const Row& a, const Row& b) {
    const uint64_t a_bytes = a.count_bytes.value_or(0), b_bytes = b.count_bytes.value_or(0);
    if (sort == Sort::Size && a_bytes != b_bytes) return a_bytes > b_bytes;
    return std::tie(a.file(), a.key()) < std::tie(b.file(), b.key());
  });
}

void print_rows(Console& console, const std::vector<Row>& rows, size_t limit) {
  Table table({{"KEY"},
               {"DTYPE"},
               {"SHAPE"},
               {"BYTES", Align::Right},
               {"CHUNKS", Align::Right},
               {"WHERE"}});
  for (size_t i = 0; i < std::min(limit, rows.size()); ++i) {
    const Row& row = rows[i];
    const bool is_tensor = row.tensor != nullptr;
    table.add_row({{key_text(row.key()), Paint::Bold},
                   {is_tensor ? std::string(name(row.tensor->dtype)) : "object", Paint::Cyan},
                   {is_tensor ? shape_text(row.tensor->shape) : "-"},
                   {row.count_bytes ? size_text(*row.count_bytes) : "-"},
                   {is_tensor ? std::to_string(row.tensor->chunks.size()) : "-"},
                   {where_text(row), Paint::Dim}});
  }
  table.print(console);
}

nlohmann::json rows_to_json(const std::vector<Row>& rows, size_t limit) {
  nlohmann::json json = {{"tensors", nlohmann::json::array()},
                         {"objects", nlohmann::json::array()}};
  for (size_t i = 0; i < std::min(limit, rows.size()); ++i) {
    json[rows[i].tensor != nullptr ? "tensors" : "objects"].push_back(to_json(rows[i]));
  }
  return json;
}

}  // namespace tools::inspect
