#pragma once

#include <iostream>
#include <utility>
#include <vector>

#include "optim/step/layer_wise_runs.h"
#include "step/device/device_ops.h"

// Whether a test that needs a GPU cannot run here; says why.
inline bool lacks_gpu() {
  const char* const problem = optim::cuda_problem();
  if (problem != nullptr) std::cout << "SKIP: needs a GPU: " << problem << "\n";
  return problem != nullptr;
}

// A model of one layer whose parameters lie on the GPU.
inline Run run_on_gpu() {
  Run run = run_of_layers(1);
  run.device = optim::use_cuda();
  run.make_model = [device = run.device, on_host = std::move(run.make_model)] {
    std::vector<optim::Param> params = on_host();
    for (optim::Param& param : params) param.param = param.param.to(device);
    return params;
  };
  return run;
}
