// What releases file differently. Which of them load what was tried: docs/compatibility.md.
#include <training/filing.h>

namespace optim {

constexpr Release kApril2026 = {"2026-04", "April 2026", {"0.16", "0.17"}, true, false};
constexpr Release kCore018 = {"0.18", "Megatron-Core 0.18", {"0.18"}};
constexpr Release kAugust2026 = {"2026-08", "August 2026", {"0.19"}, false};

std::span<const Release* const> releases() {
  static constexpr const Release* kAll[] = {&kApril2026, &kCore018, &kAugust2026};
  return kAll;
}

}  // namespace optim
