#pragma once

#include <vector>

#include <kernels/grad_pointers.h>

namespace kernels {

// Gradients that lie elsewhere than before.
struct MovedGrads {
  const std::vector<const void*>& grads;  // one per parameter of the plan
  cudaStream_t stream;

  // Writes all of a table's where one has changed; `params`: of the plan, one per entry.
  template <class Entry>
  cudaError_t write(std::vector<Entry>& entries, const std::vector<size_t>& params,
                    Entry* on_device) const {
    std::vector<const void*> moved;
    bool has_changed = false;
    for (size_t i = 0; i < entries.size(); ++i) {
      moved.push_back(grads[params[i]]);
      has_changed = has_changed || moved[i] != entries[i].grad;
    }
    if (!has_changed) return cudaSuccess;
    for (size_t i = 0; i < entries.size(); ++i) entries[i].grad = moved[i];
    return set_grads(on_device, moved.data(), static_cast<uint32_t>(moved.size()), stream);
  }
};

}  // namespace kernels
