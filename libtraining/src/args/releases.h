#pragma once

#include <vector>

#include <training/filing.h>

namespace optim {

// What releases() shows. For tests that add one.
std::vector<const Release*>& release_table();

}  // namespace optim
