#include "step/device/device_loading.h"

#include <ATen/ops/equal.h>

#include <ckpt/checkpoint.h>
#include <optim/checkpoint_bridge.h>
#include <training/opened_training.h>
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <filesystem>

#include "on_gpu.h"

namespace {

void expect_whole_tensors_on(const at::Device& device) {
  const std::filesystem::path sample =
      std::filesystem::path(SHARDWISE_GOLDEN_DIR) / "lw_muon_bf16_torch_dist_dp2" / "ckpt";
  const optim::OpenedTraining checkpoint = optim::open_checkpoint(sample);
  int tensors = 0;
  for (const ckpt::TensorEntry& entry : checkpoint.catalog().tensors) {
    const at::Tensor expected = optim::load_tensor(checkpoint, entry);
    for (const int64_t slab_bytes : {int64_t{1}, int64_t{1000}, int64_t{1} << 24}) {
      const at::Tensor found = optim::load_in_slabs(checkpoint, entry, {device, slab_bytes});
      BOOST_TEST(at::equal(found.cpu(), expected), entry.key << " by " << slab_bytes);
    }
    ++tensors;
  }
  BOOST_TEST(tensors > 0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_loading)

BOOST_AUTO_TEST_CASE(slabs_of_any_size_give_the_whole_tensor) { expect_whole_tensors_on(at::kCPU); }

BOOST_AUTO_TEST_CASE(slabs_reach_a_gpu_through_page_locked_buffers) {
  if (lacks_gpu()) return;
  expect_whole_tensors_on(optim::use_cuda());
}

BOOST_AUTO_TEST_SUITE_END()
