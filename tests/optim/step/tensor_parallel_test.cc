#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <optim/matrix_split.h>
#include <optim/update_rule.h>

#include <cmath>

#include "optim/expect_error.h"
#include "optim/golden_json.h"
#include "optim/step/parallel_runs.h"

// Muon's tensor-parallel modes, over Gloo.
BOOST_AUTO_TEST_SUITE(tensor_parallel)

using optim::MatmulPrecision;
using optim::MuonTpMode;

struct Cut {
  std::vector<int64_t> shape;
  int dim = 0;
  std::vector<int64_t> extents;

  at::Tensor part(const at::Tensor& whole, size_t rank) const {
    const int64_t begin =
        std::accumulate(extents.begin(), extents.begin() + static_cast<int64_t>(rank), int64_t{0});
    return whole.narrow(dim, begin, extents[rank]).contiguous();
  }
};

const Cut kCuts[] = {{{12, 30}, 1, {10, 20}},    {{30, 12}, 0, {7, 11, 12}}, {{12, 30}, 0, {4, 8}},
                     {{9, 9}, 0, {3, 6}},        {{40, 25}, 1, {1, 14, 10}}, {{16, 16}, 1, {8, 8}},
                     {{64, 700}, 1, {256, 444}}, {{20, 9}, 0, {20}}};

// The parts of newton_schulz_tp() of each rank, put together.
at::Tensor over_ranks(const at::Tensor& whole, const Cut& cut, MuonTpMode mode,
                      const optim::NewtonSchulzOptions& options) {
  const size_t count = cut.extents.size();
  const auto groups =
      optim::make_in_process_groups(static_cast<int>(count), {.network_interface = "lo"});
  std::vector<at::Tensor> parts(count);
  run_ranks(count, [&](size_t rank) {
    const optim::MatrixSplit split = {mode, cut.dim, cut.extents,
                                      optim::make_matrix_ranks(groups[rank].dp_cp)};
    parts[rank] = optim::newton_schulz_tp(cut.part(whole, rank), options, split);
  });
  return at::cat(parts, cut.dim);
}

double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

BOOST_FIXTURE_TEST_CASE(duplicated_gives_the_bits_of_the_whole_matrix, OneThread) {
  for (const Cut& cut : kCuts) {
    const at::Tensor whole = random_tensor(cut.shape, 3);
    for (const auto precision : {MatmulPrecision::Highest, MatmulPrecision::Medium}) {
      const optim::NewtonSchulzOptions options = {.precision = precision};
      BOOST_TEST(same_bits(over_ranks(whole, cut, MuonTpMode::Duplicated, options),
                           optim::newton_schulz(whole, options)));
    }
  }
}

BOOST_FIXTURE_TEST_CASE(distributed_gives_the_whole_matrix_within_rounding, OneThread) {
  for (const Cut& cut : kCuts) {
    const at::Tensor whole = random_tensor(cut.shape, 3);
    const at::Tensor exact = optim::newton_schulz(whole, {.precision = MatmulPrecision::Highest});
    for (const auto& [precision, bound] :
         {std::pair{MatmulPrecision::Highest, 3e-6}, {MatmulPrecision::Medium, 3e-2}}) {
      const at::Tensor ours =
          over_ranks(whole, cut, MuonTpMode::Distributed, {.precision = precision});
      BOOST_TEST(
          norm_of(ours.sub(exact)) <= bound * norm_of(exact),
          cut.shape[0] << "x" << cut.shape[1] << ": " << norm_of(ours.sub(exact)) / norm_of(exact));
    }
  }
}

// As one process would: the parts' Gram matrices are added in the order of ranks.
at::Tensor by_hand(const at::Tensor& whole, const Cut& cut) {
  std::vector<at::Tensor> parts;
  double squares = 0;
  for (const float value : values_of(whole)) squares += double{value} * value;
  for (size_t rank = 0; rank < cut.extents.size(); ++rank) {
    const at::Tensor part = cut.part(whole, rank);
    parts.push_back((cut.dim == 0 ? part.t() : part).contiguous());
    parts.back().div_(static_cast<float>(std::sqrt(squares)));
  }
  for (int64_t i = 0; i < 5; ++i) {
    const auto [a, b, c] = optim::newton_schulz_step(optim::NsCoefficients::Quintic, i);
    at::Tensor gram;
    for (const at::Tensor& x : parts) {
      const at::Tensor own = at::mm(x, x.t());
      gram = gram.defined() ? gram.add(own) : own;
    }
    const at::Tensor polynomial = at::addmm(gram, gram, gram.t(), b, c);
    for (at::Tensor& x : parts) x = at::addmm(x, polynomial, x, a, 1);
  }
  if (cut.dim == 0) {
    for (at::Tensor& x : parts) x = x.t().contiguous();
  }
  return at::cat(parts, cut.dim);
}

BOOST_FIXTURE_TEST_CASE(distributed_in_fp32_has_the_bits_of_sums_in_the_order_of_ranks, OneThread) {
  for (const Cut& cut : kCuts) {
    if (cut.shape[1] > 256) continue;  // products of one piece each
    const at::Tensor whole = random_tensor(cut.shape, 5);
    const at::Tensor ours =
        over_ranks(whole, cut, MuonTpMode::Distributed, {.precision = MatmulPrecision::Highest});
    BOOST_TEST(same_bits(ours, by_hand(whole, cut)), cut.shape[0] << "x" << cut.shape[1]);
  }
}

// What emerging_optimizers 0.3 gave two processes over Gloo (scripts/golden/newton_schulz_tp.py).
BOOST_FIXTURE_TEST_CASE(results_are_those_of_the_reference, OneThread) {
  const nlohmann::json recorded = golden("newton_schulz_tp.json");
  for (const auto& row : recorded.at("cases")) {
    const auto shape = row.at("shape").get<std::vector<int64_t>>();
    const int dim = row.at("dim");
    const int64_t half = shape[static_cast<size_t>(dim)] / 2;
    const bool is_exact = row.at("precision") == "highest";
    const optim::NewtonSchulzOptions options = {.precision = is_exact ? MatmulPrecision::Highest
                                                                      : MatmulPrecision::Medium};
    const MuonTpMode mode =
        row.at("mode") == "duplicated" ? MuonTpMode::Duplicated : MuonTpMode::Distributed;
    const std::vector<float> ours = values_of(over_ranks(
        random_tensor(shape, row.at("seed")), {shape, dim, {half, half}}, mode, options));
    const auto theirs = row.at("result").get<std::vector<float>>();
    double largest = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(double{ours[i]} - double{theirs[i]}));
    }
    BOOST_TEST(largest <= (is_exact ? 2e-6 : 3e-2), row.dump().substr(0, 90) << ": " << largest);
  }
}

BOOST_AUTO_TEST_CASE(parts_that_do_not_fit_are_refused) {
  const auto invalid = ckpt::ErrorCode::InvalidArgument;
  const at::Tensor part = random_tensor({4, 6}, 1);
  const auto ranks = optim::make_matrix_ranks(nullptr);
  for (const optim::MatrixSplit& split :
       {optim::MatrixSplit{MuonTpMode::Blockwise, 0, {4}, ranks},
        optim::MatrixSplit{MuonTpMode::Distributed, 2, {4}, ranks},
        optim::MatrixSplit{MuonTpMode::Distributed, 0, {5}, ranks},
        optim::MatrixSplit{MuonTpMode::Distributed, 0, {4, 0}, ranks},
        optim::MatrixSplit{MuonTpMode::Distributed, 0, {}, ranks},
        optim::MatrixSplit{MuonTpMode::Duplicated, 0, {4}, nullptr}}) {
    expect_error(invalid, "", [&] { optim::newton_schulz_tp(part, {}, split); });
  }
}

// ---- The optimizer: parts of a small GPT, cut unevenly, against the whole.

optim::OptimizerConfig config_of(MuonTpMode mode, const std::string& rule = "muon") {
  optim::OptimizerConfig config = muon_config();
  config.muon_tp_mode = mode;
  config.optimizer = rule;
  config.muon_nesterov = true;
  config.clip_grad = 0.5;
  config.muon_fp32_matmul_prec = MatmulPrecision::Highest;
  return config;
}

std::vector<optim::Param> parts_of_model(const optim::ProcessRank& tp) {
  std::vector<optim::Param> params = small_model(2, 17);
  for (optim::Param& param : params) {
    param.param = part_of(param.param, param.info, tp);
    param.info.shape = param.param.sizes().vec();
  }
  return params;
}

at::Tensor part_of_gradient(const optim::ParamInfo& info, int64_t step,
                            const optim::ProcessRank& tp) {
  for (const optim::Param& whole : small_model(2, 17)) {
    if (whole.info.name == info.name) return part_of(gradient_of(whole.info, step), info, tp);
  }
  return {};
}

struct RankOutcome {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> tensors;  // of the model, and states owned here
};

RankOutcome run_rank(const optim::ProcessGroupCollection& groups, const Layout& layout,
                     const optim::OptimizerConfig& config) {
  const optim::ProcessRank tp = optim::rank_in(groups.tp);
  optim::MegatronOptimizerOptions options = options_of(layout, groups);
  options.era = optim::EmergingOptimizers::V0_2;  // of adaptive Muon; 0.3 scales by the part, too
  const auto optimizer = make_optimizer_with(parts_of_model(tp), layout, options, config);
  RankOutcome outcome;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer->bind_grads(
        [&](const optim::ParamInfo& info) { return part_of_gradient(info, step, tp); });
    outcome.norms.push_back(optimizer->step().grad_norm->get());
  }
  for (const optim::Param& param : optimizer->all_params()) {
    outcome.tensors["model." + param.info.name] = param.param.clone();
  }
  Outcome owned;
  collect_owned(*optimizer, owned);
  outcome.tensors.merge(owned.tensors);
  return outcome;
}

// What the ranks have, put together to what one has.
RankOutcome run_grid(const GridSizes& sizes, const Layout& layout,
                     const optim::OptimizerConfig& config) {
  if (sizes.processes() == 1) return run_rank({}, layout, config);
  const auto grid = make_grid(sizes);
  std::vector<RankOutcome> outcomes(grid.size());
  run_ranks(grid.size(),
            [&](size_t rank) { outcomes[rank] = run_rank(grid[rank], layout, config); });
  RankOutcome whole = {outcomes.front().norms, {}};
  for (int dp = 0; dp < sizes.dp; ++dp) {
    const auto* const ranks = &outcomes[static_cast<size_t>(dp * sizes.tp)];
    for (const auto& [name, first] : ranks[0].tensors) {
      const std::string of = name.substr(name.find('.') + 1);
      const int dim =
          optim::megatron_attributes(of, static_cast<size_t>(first.dim())).partition_dim;
      std::vector<at::Tensor> parts;
      for (int tp = 0; tp < sizes.tp; ++tp) parts.push_back(ranks[tp].tensors.at(name));
      whole.tensors[name] = dim < 0 ? parts.front() : at::cat(parts, dim);
    }
  }
  return whole;
}

const std::pair<GridSizes, Layout> kGrids[] = {
    {{2, 1}, {}},
    {{2, 2}, {2, 2}},
    {{2, 2}, {2, 2, optim::OwnershipPolicy::PingPong, true, false, 100}},
    {{2, 2}, {2, 2, optim::OwnershipPolicy::Balanced, true, true, 300}},
    {{2, 3}, {3, 3, optim::OwnershipPolicy::Lpt}}};

BOOST_FIXTURE_TEST_CASE(duplicated_steps_have_the_bits_of_one_rank, OneThread) {
  for (const auto& [rule, precision] : {std::pair{"muon", MatmulPrecision::Highest},
                                        {"muon", MatmulPrecision::Medium},
                                        {"adaptive_muon", MatmulPrecision::Highest}}) {
    optim::OptimizerConfig config = config_of(MuonTpMode::Duplicated, rule);
    config.muon_fp32_matmul_prec = precision;
    config.muon_scale_mode = optim::MuonScaleMode::UnitRmsNorm;
    if (config.optimizer != "muon") config.muon_scale_mode = optim::MuonScaleMode::ShapeScaling;
    const RankOutcome expected = run_grid({}, {}, config);
    for (const auto& [sizes, layout] : kGrids) {
      if (config.optimizer != "muon" && sizes.dp > 1) continue;
      const RankOutcome ours = run_grid(sizes, layout, config);
      for (size_t step = 0; step < 3; ++step) {
        BOOST_TEST(std::abs(ours.norms[step] / expected.norms[step] - 1) < 1e-14);
      }
      BOOST_TEST(ours.tensors.size() == expected.tensors.size());
      for (const auto& [name, tensor] : ours.tensors) {
        const bool is_same = same_bits(tensor, expected.tensors.at(name));
        BOOST_TEST(is_same, sizes.tp << "x" << sizes.dp << " " << rule << " " << name);
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(distributed_steps_are_those_of_one_rank_within_rounding, OneThread) {
  const optim::OptimizerConfig config = config_of(MuonTpMode::Distributed);
  const RankOutcome expected = run_grid({}, {}, config);
  const RankOutcome one_dp = run_grid({2, 1}, {}, config);
  for (const auto& [sizes, layout] : kGrids) {
    const RankOutcome ours = run_grid(sizes, layout, config);
    for (const auto& [name, tensor] : ours.tensors) {
      BOOST_TEST(same_bits(tensor, one_dp.tensors.at(name)), name);  // whatever DP and overlap
      if (!name.starts_with("master.")) continue;
      BOOST_TEST(largest_difference(tensor, expected.tensors.at(name)) < 1e-6, name);
    }
  }
}

// As in the reference: the rows of gate and up are not told apart, and lie in the order of ranks.
BOOST_FIXTURE_TEST_CASE(a_gated_weight_is_one_matrix_of_its_ranks_rows, OneThread) {
  const at::Tensor gate = random_tensor({10, 6}, 1), up = random_tensor({10, 6}, 2);
  std::vector<at::Tensor> rows;
  for (const int64_t begin : {0, 5}) {
    rows.push_back(gate.narrow(0, begin, 5));
    rows.push_back(up.narrow(0, begin, 5));
  }
  const at::Tensor by_rank = at::cat(rows, 0);
  const optim::NewtonSchulzOptions options = {.precision = MatmulPrecision::Highest};
  const at::Tensor ours =
      over_ranks(by_rank, {{20, 6}, 0, {10, 10}}, MuonTpMode::Duplicated, options);
  BOOST_TEST(same_bits(ours, optim::newton_schulz(by_rank, options)));
  const at::Tensor canonical = optim::newton_schulz(at::cat({gate, up}, 0), options);
  BOOST_TEST(largest_difference(ours.narrow(0, 5, 5), canonical.narrow(0, 10, 5)) < 1e-6);
}

BOOST_AUTO_TEST_CASE(a_part_without_a_gradient_is_refused_on_all_ranks_before_anything_moves) {
  const auto grid = make_grid({2, 2});
  const std::string name = "decoder.layers.1.mlp.linear_fc1.weight";
  std::vector<bool> same(grid.size(), true);
  const auto errors = errors_of_ranks(grid.size(), [&](size_t rank) {
    const optim::ProcessRank tp = optim::rank_in(grid[rank].tp);
    const auto optimizer =
        make_optimizer(parts_of_model(tp), {2, 2}, grid[rank], config_of(MuonTpMode::Distributed));
    optimizer->bind_grads([&](const optim::ParamInfo& info) {
      return tp.rank == 1 && info.name == name ? at::Tensor() : part_of_gradient(info, 0, tp);
    });
    std::vector<at::Tensor> before;
    for (const optim::Param& param : optimizer->all_params()) before.push_back(param.param.clone());
    try {
      optimizer->step();
    } catch (...) {
      for (size_t i = 0; i < before.size(); ++i) {
        if (!same_bits(before[i], optimizer->all_params()[i].param)) same[rank] = false;
      }
      throw;
    }
  });
  int named = 0;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    BOOST_TEST(errors[rank].find("others have none") != std::string::npos, errors[rank]);
    BOOST_TEST(same[rank]);
    named += errors[rank].find(name) != std::string::npos ? 1 : 0;
  }
  BOOST_TEST(named == 2);  // both ranks of the group that updates it
}

BOOST_AUTO_TEST_CASE(ranks_whose_parts_do_not_belong_together_refuse_each_other) {
  using Change = std::function<void(optim::Param&)>;
  const std::string name = "decoder.layers.0.mlp.linear_fc2.weight";
  const std::pair<Change, const char*> rows[] = {
      {[](optim::Param& p) { p.info.name = "decoder.layers.9.mlp.linear_fc2.weight"; },
       "in its place"},
      {[](optim::Param& p) { p.info.attributes.partition_dim = 0; }, "does not fit"},
      {[](optim::Param& p) { p.param = p.param.narrow(0, 0, 7).contiguous(); }, "does not fit"},
      {[](optim::Param& p) { p.info.attributes.use_muon = false; }, "in its place"}};
  for (const auto& [change, expected] : rows) {
    const auto grid = make_grid({2, 1});
    const auto errors = errors_of_ranks(grid.size(), [&](size_t rank) {
      std::vector<optim::Param> params = parts_of_model(optim::rank_in(grid[rank].tp));
      for (optim::Param& param : params) {
        if (rank == 1 && param.info.name == name) change(param);
        param.info.shape = param.param.sizes().vec();
      }
      make_optimizer(std::move(params), {}, grid[rank], config_of(MuonTpMode::Duplicated));
    });
    for (const std::string& error : errors) {
      BOOST_TEST(error.find(expected) != std::string::npos, expected << ": " << error);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_part_must_say_along_which_dimension_it_was_cut) {
  for (const bool is_parallel : {false, true}) {
    const auto grid = make_grid({2, 1});
    const auto errors = errors_of_ranks(grid.size(), [&](size_t rank) {
      std::vector<optim::Param> params = parts_of_model(optim::rank_in(grid[rank].tp));
      for (optim::Param& param : params) {
        if (param.info.name != "decoder.layers.0.mlp.linear_fc2.weight") continue;
        param.info.attributes.tensor_model_parallel = is_parallel;
        if (is_parallel) param.info.attributes.partition_dim = -1;
      }
      make_optimizer(std::move(params), {}, grid[rank], config_of(MuonTpMode::Distributed));
    });
    for (const std::string& error : errors) {
      BOOST_TEST(error.find("layers.0.mlp.linear_fc2.weight") != std::string::npos, error);
      BOOST_TEST(error.find("partition_dim") != std::string::npos, error);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
