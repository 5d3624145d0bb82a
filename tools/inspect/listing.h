#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <common/console.h>
#include <common/json_stream.h>
#include <common/key_filter.h>

namespace tools::inspect {

// A tensor or an object of a catalog, as `ls` shows it.
struct Row {
  const ckpt::TensorEntry* tensor = nullptr;  // one of the two
  const ckpt::ObjectEntry* object = nullptr;
  std::optional<uint64_t> count_bytes;  // none: part of a file's value tree

  const std::string& file() const { return tensor != nullptr ? tensor->file : object->file; }
  const std::string& key() const { return tensor != nullptr ? tensor->key : object->key; }
};

enum class Sort : uint8_t { Stored, Key, Size };

// Tensors, then objects, that `filter` selects.
std::vector<Row> list_rows(const ckpt::Catalog& catalog, const KeyFilter& filter);
std::vector<ckpt::KeyName> names_of(const std::vector<Row>& rows);
void sort_rows(std::vector<Row>& rows, Sort sort);

// A torch.save file that was opened by itself: its entries name no file.
bool is_single_file(const ckpt::Catalog& catalog);

// A key for people: ckpt::printed_key().
std::string key_text(const std::string& key);
// "FILE:KEY", or the key alone where it has no file.
std::string qualified_key(const std::string& file, const std::string& key);

struct FileName {
  const std::string* path;
  std::string json;  // quoted
};

// The files of a catalog in the order of their names, and which of them hold a row's bytes.
class FileNames {
 public:
  explicit FileNames(const ckpt::Catalog& catalog);
  // Sorted, each once; valid until the next call.
  const std::vector<const FileName*>& of(const Row& row);
  // The same as an array of `json`, whose rows are all equally deep.
  const std::string& json_of(const Row& row, const JsonStream& json);

 private:
  std::vector<FileName> names_;  // sorted
  std::vector<uint32_t> ranks_;  // [file] its place in names_
  void find(const Row& row);     // found_

  std::vector<uint32_t> found_;   // ranks as the row has them
  std::vector<uint32_t> before_;  // of the row before: mostly the same
  std::vector<uint32_t> sorted_;
  std::vector<const FileName*> result_;
  std::string json_;  // of result_; empty: not made
  FileName own_;      // of an object that names its file
};

struct Rows {
  const ckpt::Catalog& catalog;
  const std::vector<Row>& rows;
  size_t limit = SIZE_MAX;
};
// Adds `missing_files` to a document, where there are any.
void add_missing_files(nlohmann::json& document, const ckpt::Catalog& catalog);
void print_rows(Console& console, const Rows& rows);
// The elements of one array: the tensors among the rows, or the objects.
void add_json_rows(JsonStream& json, const Rows& rows, bool tensors);

}  // namespace tools::inspect
