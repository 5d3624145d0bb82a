#include <training/listing.h>

#include <algorithm>
#include <tuple>

namespace optim {
namespace {

CatalogRow make_row(const ckpt::TensorEntry& tensor) {
  return {&tensor, nullptr, count_bytes(tensor)};
}

CatalogRow make_row(const ckpt::ObjectEntry& object) {
  CatalogRow row{nullptr, &object, std::nullopt};
  if (object.region) row.count_bytes = object.region->bytes.count_bytes;
  return row;
}

std::vector<ckpt::KeyName> names_in(std::span<ckpt::Inventory* const> inventories) {
  std::vector<ckpt::KeyName> names;
  for (const ckpt::Inventory* inventory : inventories) {
    for (const ckpt::TensorEntry& tensor : inventory->tensors) {
      names.push_back({tensor.file, tensor.key});
    }
    for (const ckpt::ObjectTree& object : inventory->objects) {
      names.push_back({object.file, object.key});
    }
  }
  return names;
}

// `selection`: resolved with `keys`.
std::vector<UnmatchedPattern> unmatched_in(const ckpt::KeySelection& selection,
                                           std::span<const ckpt::KeyName> keys) {
  std::vector<UnmatchedPattern> patterns;
  for (const std::string& typed : selection.unmatched()) {
    patterns.push_back({typed, ckpt::nearest_key(typed, keys)});
  }
  return patterns;
}

}  // namespace

std::vector<CatalogRow> list_rows(const ckpt::Catalog& catalog, ckpt::KeySelection selection) {
  std::vector<CatalogRow> rows;
  rows.reserve(catalog.tensors.size() + catalog.objects.size());
  for (const ckpt::TensorEntry& tensor : catalog.tensors) rows.push_back(make_row(tensor));
  for (const ckpt::ObjectEntry& object : catalog.objects) rows.push_back(make_row(object));
  if (selection.is_everything()) return rows;
  selection.resolve(names_of(rows));
  std::erase_if(rows,
                [&](const CatalogRow& row) { return !selection.accepts(row.file(), row.key()); });
  return rows;
}

std::vector<ckpt::KeyName> names_of(std::span<const CatalogRow> rows) {
  std::vector<ckpt::KeyName> names;
  for (const CatalogRow& row : rows) names.push_back({row.file(), row.key()});
  return names;
}

void sort_rows(std::vector<CatalogRow>& rows, RowOrder order) {
  if (order == RowOrder::Stored) return;
  std::ranges::stable_sort(rows, [order](const CatalogRow& a, const CatalogRow& b) {
    const uint64_t a_bytes = a.count_bytes.value_or(0), b_bytes = b.count_bytes.value_or(0);
    if (order == RowOrder::Size && a_bytes != b_bytes) return a_bytes > b_bytes;
    return std::tie(a.file(), a.key()) < std::tie(b.file(), b.key());
  });
}

bool is_single_file(const ckpt::Catalog& catalog) {
  return catalog.format == ckpt::Format::Torch && catalog.files.size() == 1 &&
         catalog.files[0].path.find('/') == std::string::npos;
}

std::vector<UnmatchedPattern> unmatched_patterns(const ckpt::Catalog& catalog,
                                                 ckpt::KeySelection selection) {
  if (selection.is_everything()) return {};
  const std::vector<CatalogRow> rows = list_rows(catalog);
  const std::vector<ckpt::KeyName> names = names_of(rows);
  selection.resolve(names);
  return unmatched_in(selection, names);
}

SelectedEntries select_entries(std::span<ckpt::Inventory* const> inventories,
                               ckpt::KeySelection selection) {
  SelectedEntries selected;
  const std::vector<ckpt::KeyName> names = names_in(inventories);
  selection.resolve(names);
  selection.refuse_missing(names);
  selected.unmatched = unmatched_in(selection, names);  // the names lie in the inventories
  const auto is_left_out = [&](const auto& entry) {
    return !selection.accepts(entry.file, entry.key);
  };
  for (ckpt::Inventory* inventory : inventories) {
    std::erase_if(inventory->tensors, is_left_out);
    std::erase_if(inventory->objects, is_left_out);
    selected.is_any |= !inventory->tensors.empty() || !inventory->objects.empty();
  }
  return selected;
}

}  // namespace optim
