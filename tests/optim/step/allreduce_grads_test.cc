#include <array>

#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"

BOOST_AUTO_TEST_SUITE(allreduce_grads)

// One thread for each of `size` ranks.
void run_ranks(int size,
               const std::function<void(size_t, const optim::ProcessGroupCollection&)>& body) {
  const auto groups = optim::make_in_process_groups(size, {.network_interface = "lo"});
  std::vector<std::exception_ptr> errors(groups.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank, groups[rank]);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// The first gradient in bf16, the last absent.
std::vector<optim::Param> params_with_grads(int64_t rank) {
  std::vector<optim::Param> params = small_model(1, 3);
  for (optim::Param& param : params) param.main_grad = gradient_of(param.info, rank);
  params.front().main_grad = params.front().main_grad.to(at::kBFloat16);
  params.back().main_grad = at::Tensor();
  return params;
}

BOOST_FIXTURE_TEST_CASE(all_ranks_get_the_average_in_place_and_a_step_takes_none, OneThread) {
  for (const int size : {2, 3}) {
    std::vector<std::vector<optim::Param>> params(static_cast<size_t>(size));
    run_ranks(size, [&](size_t rank, const optim::ProcessGroupCollection& groups) {
      params[rank] = params_with_grads(static_cast<int64_t>(rank));
      Layout layout{static_cast<uint32_t>(size), size};
      layout.bucket_bytes = 100;  // several pieces for most gradients
      const auto optimizer = make_optimizer(params[rank], layout, groups);
      optimizer->step();
      for (size_t i = 0; i + 1 < params[rank].size(); ++i) {
        const auto given = params_with_grads(static_cast<int64_t>(rank))[i].main_grad;
        if (!same_bits(params[rank][i].main_grad, given)) throw std::runtime_error("reduced");
      }
      optimizer->allreduce_grads();
    });
    for (size_t i = 0; i + 1 < params[0].size(); ++i) {
      at::Tensor sum = params_with_grads(0)[i].main_grad.to(at::kFloat).clone();
      for (int64_t rank = 1; rank < size; ++rank) sum.add_(params_with_grads(rank)[i].main_grad);
      const at::Tensor expected = sum.div_(size).to(params[0][i].main_grad.scalar_type());
      for (const auto& of_rank : params) {
        BOOST_TEST(same_bits(of_rank[i].main_grad, expected), of_rank[i].info.name);
      }
    }
    BOOST_TEST(!params[0].back().main_grad.defined());
  }
}

BOOST_AUTO_TEST_CASE(experts_are_averaged_over_their_own_group) {
  std::array<std::vector<optim::Param>, 2> params;
  run_ranks(2, [&](size_t rank, const optim::ProcessGroupCollection& groups) {
    params[rank] = params_with_grads(static_cast<int64_t>(rank));
    params[rank][1].info.attributes.allreduce = false;
    optim::ProcessGroupCollection own = groups;
    own.expt_dp = nullptr;  // one process
    make_optimizer(params[rank], {2, 2}, own)->allreduce_grads();
  });
  BOOST_TEST(same_bits(params[0][0].main_grad, params[1][0].main_grad));
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto before = params_with_grads(static_cast<int64_t>(rank));
    BOOST_TEST(same_bits(params[rank][1].main_grad, before[1].main_grad));
  }
}

BOOST_AUTO_TEST_CASE(a_gradient_that_one_rank_lacks_is_refused_on_all) {
  std::array<std::string, 2> refused;
  std::array<std::vector<optim::Param>, 2> params;
  run_ranks(2, [&](size_t rank, const optim::ProcessGroupCollection& groups) {
    params[rank] = params_with_grads(static_cast<int64_t>(rank));
    const auto optimizer = make_optimizer(params[rank], {2, 2}, groups);
    try {
      optimizer->allreduce_grads([&](const optim::ParamInfo& info) {
        const bool lacks = rank == 1 && info.name == params[1][2].info.name;
        return lacks ? at::Tensor() : params[rank][0].main_grad;
      });
    } catch (const ckpt::Error& error) {
      refused[rank] = error.where().key;
    }
  });
  BOOST_TEST(refused[0] == params[0][1].info.name);  // of another shape on both
  BOOST_TEST(refused[1] == refused[0]);
  run_ranks(2, [&](size_t rank, const optim::ProcessGroupCollection& groups) {
    std::vector<optim::Param> own = params_with_grads(static_cast<int64_t>(rank));
    if (rank == 1) own[2].main_grad = at::Tensor();
    const auto optimizer = make_optimizer(own, {2, 2}, groups);
    try {
      optimizer->allreduce_grads();
    } catch (const ckpt::Error& error) {
      refused[rank] = error.where().key;
    }
    params[rank] = own;
  });
  BOOST_TEST(refused[0] == params[0][2].info.name);
  BOOST_TEST(refused[1] == refused[0]);
  BOOST_TEST(same_bits(params[0][1].main_grad, params_with_grads(0)[1].main_grad));
}

BOOST_AUTO_TEST_SUITE_END()
