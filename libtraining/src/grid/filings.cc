// The ways to file an optimizer's state.
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

}  // namespace optim
