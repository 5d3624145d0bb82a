// The ways to file an optimizer's state: a line each. Those that need no hooks are here.
#include "layouts/job/filing_hooks.h"

namespace optim {

constexpr Filing kByName = {"fully_reshardable", ckpt::Format::TorchDist, true};
constexpr Filing kDealt = {"layer_wise"};
constexpr Filing kWhole = {"none"};

std::vector<const Filing*>& filing_table() {
  static std::vector<const Filing*> table = {&kByName, &kBuckets, &kFlatFile, &kDealt,
                                             &kWhole,  &kRanges,  &kGathered};
  return table;
}

std::span<const Filing* const> filings() { return filing_table(); }

const StoreHooks* store_hooks_of(std::string_view key) {
  for (const Filing* const filing : filings()) {
    const StoreHooks* const hooks = filing->in_store;
    if (hooks != nullptr && hooks->owns(key)) return hooks;
  }
  return nullptr;
}

}  // namespace optim
