// The ways to file an optimizer's state, and what releases file differently. Which releases load
// what was tried: docs/compatibility.md.
#include <training/filing.h>

namespace optim {

using ckpt::Format;

constexpr Filing kByName = {"fully_reshardable", Format::TorchDist, true};
constexpr Filing kBuckets = {"dp_reshardable", Format::TorchDist, true, true};
constexpr Filing kFlatFile = {"flat_file", Format::Torch, true, true};
constexpr Filing kDealt = {"layer_wise"};
constexpr Filing kWhole = {"none"};
constexpr Filing kRanges = {"fully_sharded_model_space", Format::TorchDist, true, false, false};
constexpr Filing kGathered = {"dp_zero_gather_scatter", Format::TorchDist, true, true, false};

std::span<const Filing* const> filings() {
  static constexpr const Filing* kAll[] = {&kByName, &kBuckets, &kFlatFile, &kDealt,
                                           &kWhole,  &kRanges,  &kGathered};
  return kAll;
}

constexpr Release kApril2026 = {"2026-04", "April 2026", {"0.16", "0.17"}, true, false};
constexpr Release kCore018 = {"0.18", "Megatron-Core 0.18", {"0.18"}};
constexpr Release kAugust2026 = {"2026-08", "August 2026", {"0.19"}, false};

std::span<const Release* const> releases() {
  static constexpr const Release* kAll[] = {&kApril2026, &kCore018, &kAugust2026};
  return kAll;
}

}  // namespace optim
