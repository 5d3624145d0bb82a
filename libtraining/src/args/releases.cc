// What releases file differently: a line each. Which of them load what was tried:
// docs/compatibility.md.
#include "args/run_args.h"

namespace optim {

constexpr Release kApril2026 = {"2026-04", "April 2026", {"0.16", "0.17"}, true, false};
constexpr Release kCore018 = {"0.18", "Megatron-Core 0.18", {"0.18"}};
constexpr Release kAugust2026 = {"2026-08", "August 2026", {"0.19"}, false};

std::vector<const Release*>& release_table() {
  static std::vector<const Release*> table = {&kApril2026, &kCore018, &kAugust2026};
  return table;
}

std::span<const Release* const> releases() { return release_table(); }

}  // namespace optim
