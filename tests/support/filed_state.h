#pragma once

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string_view>
#include <utility>

#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "support/generated_state.h"

// Files of generated states, and states with tensors in each other's place.
namespace test {

inline optim::OpenedTraining file_state(const optim::FiledState& state,
                                        const ckpt::PayloadSource& source,
                                        const optim::LayerWiseTargetSpec& spec,
                                        const std::filesystem::path& path,
                                        const ckpt::ExecuteOptions& options = {}) {
  const ckpt::Target target = optim::make_layer_wise_target(state, spec);
  ckpt::Staging staging = ckpt::Staging::create(path);
  ckpt::execute(target, ckpt::make_plan(target), source, staging, options);
  staging.commit();
  return optim::open_checkpoint(path);
}

inline optim::LayerWiseTargetSpec spec_of(ckpt::Format format, uint32_t tensor,
                                          uint32_t pipeline = 1, uint32_t data = 1) {
  optim::LayerWiseTargetSpec spec;
  spec.format = format;
  spec.sizes.tensor_parallel = tensor;
  spec.sizes.pipeline_parallel = pipeline;
  spec.sizes.data_parallel = data;
  return spec;
}

inline optim::TrainedParam& param_named(optim::FiledState& state, std::string_view name) {
  for (optim::TrainedParam& param : state.params) {
    if (param.info.name == name) return param;
  }
  BOOST_FAIL("no parameter is named " << name);
  std::abort();
}

// Values of two tensors of one shape change places; shapes alone do not show it.
inline void swap_values(optim::TensorRef& a, optim::TensorRef& b) {
  BOOST_REQUIRE((a->shape == b->shape));
  ckpt::TensorEntry first = *a, second = *b;
  std::swap(first.chunks, second.chunks);
  a = std::make_shared<const ckpt::TensorEntry>(std::move(first));
  b = std::make_shared<const ckpt::TensorEntry>(std::move(second));
}

}  // namespace test
