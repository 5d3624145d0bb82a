#pragma once

#include <vector>

#include <optim/optimizer.h>

namespace optim {

// Sets is_offloaded of each parameter as the reference's HybridDeviceOptimizer chooses, within each
// optimizer of the chain: group by group, until what is chosen reaches the fraction of the elements
// that lie on a GPU. Beyond the reference, parameters of rules that do not go element by element
// (Muon's matrices) stay where they are and do not count.
// `cpu_stands_for_gpu`: for tests, parameters on the CPU lie on the device.
void choose_offloaded(const std::vector<OptimizerGroup*>& groups, const OptimizerConfig& config,
                      bool cpu_stands_for_gpu = false);

}  // namespace optim
