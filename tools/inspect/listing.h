#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <common/console.h>
#include <common/key_filter.h>
#include <nlohmann/json.hpp>

namespace tools::inspect {

// A tensor or an object of a catalog, as `ls` shows it.
struct Row {
  const ckpt::TensorEntry* tensor = nullptr;  // one of the two
  const ckpt::ObjectEntry* object = nullptr;
  std::optional<uint64_t> count_bytes;  // none: part of a file's value tree
  std::vector<std::string> files;       // where its bytes are

  const std::string& file() const { return tensor != nullptr ? tensor->file : object->file; }
  const std::string& key() const { return tensor != nullptr ? tensor->key : object->key; }
};

enum class Sort : uint8_t { Stored, Key, Size };

// Tensors, then objects, that `filter` accepts.
std::vector<Row> list_rows(const ckpt::Catalog& catalog, const KeyFilter& filter);
void sort_rows(std::vector<Row>& rows, Sort sort);

// A torch.save file that was opened by itself: its entries name no file.
bool is_single_file(const ckpt::Catalog& catalog);

// A key for people: escaped, and "(root)" for the empty pointer of a bare tensor or a file's whole
// tree.
std::string key_text(const std::string& key);
// "FILE:KEY", or the key alone where it has no file.
std::string qualified_key(const std::string& file, const std::string& key);

void print_rows(Console& console, const std::vector<Row>& rows, size_t limit);
nlohmann::json rows_to_json(const std::vector<Row>& rows, size_t limit);

}  // namespace tools::inspect
