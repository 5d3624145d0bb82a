#include <array>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <ckpt/error.h>
#include <optim/ownership.h>

#include "sharding/refuse.h"

namespace optim {
namespace {

void require_positive(const ParallelSizes& sizes) {
  const std::array<std::pair<std::string_view, uint32_t>, 7> all = {
      {{"data_parallel", sizes.data_parallel},
       {"context_parallel", sizes.context_parallel},
       {"tensor_parallel", sizes.tensor_parallel},
       {"pipeline_parallel", sizes.pipeline_parallel},
       {"virtual_pipeline_parallel", sizes.virtual_pipeline_parallel},
       {"expert_parallel", sizes.expert_parallel},
       {"expert_tensor_parallel", sizes.expert_tensor_parallel}}};
  for (const auto& [name, size] : all) {
    if (size == 0) refuse("parallel size '" + std::string(name) + "' is 0; it must be at least 1");
  }
}

uint64_t product(std::initializer_list<uint64_t> sizes) {
  uint64_t result = 1;
  for (const uint64_t size : sizes) {
    if (result > std::numeric_limits<uint32_t>::max() / size) refuse("more than 2^32 - 1 ranks");
    result *= size;
  }
  return result;
}

}  // namespace

uint64_t ParallelSizes::world() const {
  require_positive(*this);
  return product({tensor_parallel, context_parallel, data_parallel, pipeline_parallel});
}

uint32_t ParallelSizes::dp_cp() const {
  require_positive(*this);
  return static_cast<uint32_t>(product({data_parallel, context_parallel}));
}

uint32_t ParallelSizes::expt_dp() const {
  const uint64_t ranks = world();
  const uint64_t per_copy = product({expert_tensor_parallel, expert_parallel, pipeline_parallel});
  if (ranks % per_copy != 0) {
    refuse(std::to_string(ranks) + " ranks are not a multiple of expert_tensor_parallel * " +
           "expert_parallel * pipeline_parallel = " + std::to_string(per_copy));
  }
  return static_cast<uint32_t>(ranks / per_copy);
}

}  // namespace optim
