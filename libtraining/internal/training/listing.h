#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/inventory.h>
#include <ckpt/key_pattern.h>

// What a checkpoint stores as rows, and which of them --include and --exclude select.
namespace optim {

// A tensor or an object of a catalog.
struct CatalogRow {
  const ckpt::TensorEntry* tensor = nullptr;  // one of the two
  const ckpt::ObjectEntry* object = nullptr;
  std::optional<uint64_t> count_bytes;  // none: part of a file's value tree

  const std::string& file() const { return tensor != nullptr ? tensor->file : object->file; }
  const std::string& key() const { return tensor != nullptr ? tensor->key : object->key; }
};

enum class RowOrder : uint8_t {
  Stored,
  Key,   // by file, then key
  Size,  // the largest first, equal ones by key
};

// Tensors, then objects, that `selection` accepts. They point into the catalog.
std::vector<CatalogRow> list_rows(const ckpt::Catalog& catalog, ckpt::KeySelection selection = {});
std::vector<ckpt::KeyName> names_of(std::span<const CatalogRow> rows);
void sort_rows(std::vector<CatalogRow>& rows, RowOrder order);

// A torch.save file that was opened by itself: its entries name no file.
bool is_single_file(const ckpt::Catalog& catalog);

// A pattern that matches no key, and the key that may have been meant.
struct UnmatchedPattern {
  std::string typed;
  std::optional<std::string> nearest;  // as listings print it
};
std::vector<UnmatchedPattern> unmatched_patterns(const ckpt::Catalog& catalog,
                                                 ckpt::KeySelection selection);

struct SelectedEntries {
  std::vector<UnmatchedPattern> unmatched;
  bool is_any = false;  // whether anything is left
};
// Leaves in the inventories what `selection` accepts; a key may be in one of them alone. Throws
// NotFound where a key that is to be included is in none of them.
SelectedEntries select_entries(std::span<ckpt::Inventory* const> inventories,
                               ckpt::KeySelection selection);

}  // namespace optim
