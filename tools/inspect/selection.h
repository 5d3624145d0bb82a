#pragma once

#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/inventory.h>
#include <common/console.h>
#include <common/key_filter.h>

namespace tools::inspect {

// Leaves in the inventories what --include and --exclude select. Warns of globs that match nothing.
// Throws NotFound where an included key is not there, or nothing is left: of nothing there is
// nothing to say.
void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console);

// Says of each pattern that matches nothing what may have been meant.
void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console);

}  // namespace tools::inspect
