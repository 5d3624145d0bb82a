#include "inspect/selection.h"

#include <ckpt/error.h>

#include "inspect/listing.h"

namespace tools::inspect {
namespace {

std::vector<ckpt::KeyName> names_in(const std::vector<ckpt::Inventory*>& inventories) {
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

void warn_of_unmatched(const ckpt::KeySelection& selection, std::span<const ckpt::KeyName> keys,
                       Console& console) {
  for (const std::string& typed : selection.unmatched()) {
    const auto nearest = ckpt::nearest_key(typed, keys);
    console.warn("'" + ckpt::escaped(typed) + "' matches no key" +
                 (nearest ? "; did you mean '" + *nearest + "'?" : ""));
  }
}

}  // namespace

void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console) {
  if (filter.is_everything()) return;
  const std::vector<Row> rows = list_rows(catalog, {});
  const std::vector<ckpt::KeyName> names = names_of(rows);
  ckpt::KeySelection selection = filter.selection();
  selection.resolve(names);
  warn_of_unmatched(selection, names, console);
}

void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console) {
  if (filter.is_everything()) return;
  const std::vector<ckpt::KeyName> names = names_in(inventories);
  ckpt::KeySelection selection = filter.selection();
  selection.resolve(names);
  selection.refuse_missing(names);
  // While the names are there: they are those of the inventories.
  warn_of_unmatched(selection, names, console);
  const auto is_left_out = [&](const auto& entry) {
    return !selection.accepts(entry.file, entry.key);
  };
  bool is_any = false;
  for (ckpt::Inventory* inventory : inventories) {
    std::erase_if(inventory->tensors, is_left_out);
    std::erase_if(inventory->objects, is_left_out);
    is_any = is_any || !inventory->tensors.empty() || !inventory->objects.empty();
  }
  if (is_any) return;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + filter.text(),
                    "ckpt-inspect ls lists the keys");
}

}  // namespace tools::inspect
