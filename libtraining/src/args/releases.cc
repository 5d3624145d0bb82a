// What releases file differently: a line each. Which of them load what was tried:
// docs/compatibility.md.
#include "args/run_args.h"

namespace optim {

constexpr Release kCore016 = {"0.16", "core 0.16", {"0.16", "0.17"}, {"0.18-dev", "2026-04"},
                              true,   false};
constexpr Release kCore018 = {"0.18", "core 0.18", {"0.18"}};
constexpr Release kCore019 = {"0.19", "core 0.19", {"0.19"}, {"0.20-dev", "2026-08"}, false};

std::vector<const Release*>& release_table() {
  static std::vector<const Release*> table = {&kCore016, &kCore018, &kCore019};
  return table;
}

std::span<const Release* const> releases() { return release_table(); }

}  // namespace optim
