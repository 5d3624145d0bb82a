#include <ATen/Parallel.h>
#include <ckpt/checkpoint.h>
#include <optim/checkpoint_bridge.h>
#include <optim/grad_stats.h>
#include <optim/layer_wise_optimizer.h>
#include <optim/update_rule.h>

#include <cmath>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(grad_stats)

// fp32 parameters of these shapes in one AdamW group.
std::unique_ptr<optim::FP32Optimizer> optimizer_of(const std::vector<at::Tensor>& grads) {
  optim::OptimizerGroup group;
  group.rule_config = optim::AdamRule{};
  group.rule = optim::make_rule(group.rule_config);
  for (size_t i = 0; i < grads.size(); ++i) {
    optim::OptimizedParam param;
    param.id = static_cast<uint32_t>(i);
    param.model.info.name = "p" + std::to_string(i);
    param.model.info.shape = grads[i].sizes().vec();
    param.model.param = random_tensor(param.model.info.shape, i);
    param.model.main_grad = grads[i];
    group.params.push_back(std::move(param));
  }
  std::vector<optim::OptimizerGroup> groups;
  groups.push_back(std::move(group));
  auto optimizer =
      std::make_unique<optim::FP32Optimizer>(std::move(groups), optim::OptimizerConfig{});
  optimizer->prepare_grads();
  return optimizer;
}

BOOST_AUTO_TEST_CASE(the_norm_is_that_of_a_long_double_sum) {
  const std::vector<at::Tensor> grads = {random_tensor({1000, 77}, 1), random_tensor({3}, 2, 1e-4),
                                         random_tensor({16385}, 3, 1e3)};
  long double squares = 0;
  for (const at::Tensor& grad : grads) {
    for (const float value : values_of(grad)) squares += static_cast<long double>(value) * value;
  }
  const auto expected = static_cast<double>(std::sqrt(squares));
  const double ours = optimizer_of(grads)->get_grad_norm();
  BOOST_TEST(std::abs(ours - expected) <= 1e-14 * expected);
}

BOOST_AUTO_TEST_CASE(the_norm_does_not_depend_on_threads) {
  const std::vector<at::Tensor> grads = {random_tensor({1 << 20}, 4), random_tensor({300001}, 5)};
  const int threads_before = at::get_num_threads();
  at::set_num_threads(1);
  const double with_one = optimizer_of(grads)->get_grad_norm();
  at::set_num_threads(4);
  const double with_four = optimizer_of(grads)->get_grad_norm();
  at::set_num_threads(threads_before);
  BOOST_TEST(with_one == with_four);
}

BOOST_AUTO_TEST_CASE(bf16_gradients_count_as_their_fp32_values) {
  const at::Tensor rounded = random_tensor({50, 3}, 6).to(at::kBFloat16);
  BOOST_TEST(optimizer_of({rounded})->get_grad_norm() ==
             optimizer_of({rounded.to(at::kFloat)})->get_grad_norm());
}

BOOST_AUTO_TEST_CASE(shared_and_absent_gradients_do_not_count) {
  const at::Tensor grad = random_tensor({10}, 7);
  const auto optimizer = optimizer_of({grad, grad, grad});
  const double all = optimizer->get_grad_norm();
  optimizer->get_parameters()[1]->model.info.attributes.shared = true;
  optimizer->get_parameters()[2]->model.main_grad = at::Tensor();
  optimizer->prepare_grads();
  BOOST_TEST(optimizer->get_grad_norm() == all / std::sqrt(3.0),
             boost::test_tools::tolerance(1e-15));
  BOOST_TEST(optimizer->count_zeros() == 0);
}

BOOST_AUTO_TEST_CASE(zeros_of_both_signs_count_and_nans_do_not) {
  const at::Tensor grad = random_tensor({20000}, 8).add_(3);
  auto* const values = grad.mutable_data_ptr<float>();
  values[0] = 0.0F;
  values[16384] = -0.0F;
  values[19999] = std::numeric_limits<float>::quiet_NaN();
  values[5] = std::numeric_limits<float>::denorm_min();
  BOOST_TEST(optimizer_of({grad})->count_zeros() == 2);
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_reach_the_norm) {
  const at::Tensor grad = random_tensor({100}, 9);
  grad.mutable_data_ptr<float>()[50] = std::numeric_limits<float>::infinity();
  BOOST_TEST(std::isinf(optimizer_of({grad})->get_grad_norm()));
  grad.mutable_data_ptr<float>()[51] = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(std::isnan(optimizer_of({grad})->get_grad_norm()));
}

// golden: Megatron's norms, zero counts and clipped gradients.
BOOST_AUTO_TEST_CASE(norms_zeros_and_clipped_gradients_are_the_recorded_ones) {
  const std::string steps = std::string(SHARDWISE_GOLDEN_DIR) + "/steps/clip_grads";
  const ckpt::Checkpoint tensors = ckpt::Checkpoint::open(steps + ".safetensors");
  std::ifstream file(steps + ".json");
  for (const auto& row : nlohmann::json::parse(file)) {
    const std::string prefix = "case" + std::to_string(row["case"].get<int>());
    std::vector<at::Tensor> grads, clipped;
    for (const char* const name : {"b16", "w16x8", "w24x16", "w8x16"}) {
      const auto found = [&](const char* what) {
        return tensors.catalog().find_tensor(prefix + what + name);
      };
      grads.push_back(optim::load_tensor(tensors, *found(".grad.")));
      clipped.push_back(optim::load_tensor(tensors, *found(".clipped.")));
    }
    const auto optimizer = optimizer_of(grads);
    const double norm = optimizer->get_grad_norm();
    const double expected = row["norm_2"];
    BOOST_TEST(std::abs(norm - expected) <= 2e-7 * expected);
    BOOST_TEST(optimizer->count_zeros() == row["num_zeros"].get<int64_t>());
    const double coefficient = row["clip_coeff"];
    BOOST_TEST(std::abs(optim::clip_coefficient(row["max_norm"], norm) - coefficient) <=
               2e-7 * coefficient);
    optimizer->clip_grad_by_total_norm(row["max_norm"], norm);
    for (size_t i = 0; i < grads.size(); ++i) {
      BOOST_TEST(largest_difference(grads[i], clipped[i]) <= 3e-7 * row["norm_inf"].get<double>());
    }
  }
}

BOOST_AUTO_TEST_CASE(clipping_shrinks_to_the_bound_and_never_stretches) {
  const at::Tensor grad = random_tensor({100}, 10);
  const at::Tensor before = grad.clone();
  const auto optimizer = optimizer_of({grad});
  const double norm = optimizer->get_grad_norm();
  optimizer->clip_grad_by_total_norm(norm * 2, norm);
  BOOST_TEST(same_bits(grad, before));
  optimizer->clip_grad_by_total_norm(0.5, norm);
  BOOST_TEST(same_bits(grad, before.clone().mul_(0.5 / (norm + 1e-6))));
  BOOST_TEST(optimizer->get_grad_norm() == 0.5, boost::test_tools::tolerance(1e-5));
  const at::Tensor clipped = grad.clone();
  optimizer->clip_grad_by_total_norm(1, std::numeric_limits<double>::quiet_NaN());
  BOOST_TEST(same_bits(grad, clipped));
}

BOOST_AUTO_TEST_SUITE_END()
