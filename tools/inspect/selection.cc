#include "inspect/selection.h"

#include <ckpt/error.h>
#include <training/listing.h>

namespace tools::inspect {
namespace {

void warn(const std::vector<optim::UnmatchedPattern>& patterns, Console& console) {
  for (const auto& [typed, nearest] : patterns) {
    console.warn("'" + ckpt::escaped(typed) + "' matches no key" +
                 (nearest ? "; did you mean '" + *nearest + "'?" : ""));
  }
}

}  // namespace

void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console) {
  warn(optim::unmatched_patterns(catalog, filter.selection()), console);
}

void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console) {
  if (filter.is_everything()) return;
  const optim::SelectedEntries selected = optim::select_entries(inventories, filter.selection());
  warn(selected.unmatched, console);
  if (selected.is_any) return;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + filter.text(),
                    "ckpt-inspect ls lists the keys");
}

}  // namespace tools::inspect
