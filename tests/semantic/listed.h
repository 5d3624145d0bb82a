#pragma once

#include <string>
#include <vector>

#include <ckpt/target.h>

#include "semantic/facts.h"

namespace semantic {

using NotCarriedList = std::vector<ckpt::NotCarried>;

// The facts that `actual` lacks or has otherwise, or has and `expected` has not, and that no entry
// of `listed` names: by the place's pointer, or by its steps joined by dots, behind any words. One
// line each. Under `values_only` nothing but tensors, objects and empty mappings is looked for.
std::vector<std::string> unlisted(const Facts& expected, const Facts& actual,
                                  const NotCarriedList& listed, bool values_only = false);

// Whether an entry has `word` as a whole word.
bool mentions(const NotCarriedList& listed, const std::string& word);

}  // namespace semantic
