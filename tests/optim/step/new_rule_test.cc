// An optimizer that the library does not have, added by what is in this file: its settings, its
// row, its arithmetic. Everything else asks the row.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <replay/trace.h>
#include <fstream>

#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"
#include "optim/step/safetensors_file.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

namespace {

// p -= lr (1 + boost) sign(m); m = lerp(m, g, 1 - momentum).
struct SignumRule {
  static constexpr std::string_view kName = "signum";
  double momentum = 0.9;
  double boost = 0;
};

class Signum final : public optim::UpdateRule {
 public:
  explicit Signum(const SignumRule& config) : UpdateRule(config), config_(config) {}
  void update_all(std::span<const optim::UpdateItem> items) const override {
    const at::NoGradGuard no_grad;
    for (const auto& [target, context] : items) {
      init_state(target.param, *target.state);
      at::Tensor& average = target.state->at("signum_buffer");
      average.lerp_(at::mul(target.grad.to(at::kFloat), context.grad_scale), 1 - config_.momentum);
      at::Tensor(target.param).add_(average.sign(), -context.lr * (1 + config_.boost));
      if (target.rounded.defined()) at::Tensor(target.rounded).copy_(target.param);
    }
  }

 private:
  SignumRule config_;
};

optim::RuleDescription signum_row() {
  using enum optim::SettingRange;
  return {
      .name = SignumRule::kName,
      .trace = "mine Signum",
      .defaults = [] { return optim::RuleConfig(SignumRule()); },
      .settings =
          [](std::any& any) {
            auto& rule = std::any_cast<SignumRule&>(any);
            return std::vector<optim::Setting>{
                {"momentum", &rule.momentum, Averaging, "sgd_momentum", "momentum"},
                {"boost", &rule.boost, AtLeastZero, {}, "boost"}};
          },
      .fields =
          [](const optim::RuleConfig&) {
            return std::vector<optim::GroupField>{
                {"momentum"}, {"boost"}, {"weight_decay", optim::GroupField::Content::WeightDecay}};
          },
      .states =
          [](const optim::RuleConfig&, optim::ParamShape shape) {
            return std::vector<optim::StateSpec>{
                {.name = "signum_buffer", .shape = {shape.begin(), shape.end()}}};
          },
      .make = [](const optim::RuleConfig& config) -> std::unique_ptr<optim::UpdateRule> {
        return std::make_unique<Signum>(*config.get_if<SignumRule>());
      }};
}

struct WithSignum {
  WithSignum() {
    if (optim::find_rule("signum") == nullptr) optim::add_rule(signum_row());
  }
};

optim::OptimizerConfig signum_config() {
  optim::OptimizerConfig config = muon_config();
  config.optimizer = "signum";
  config.sgd_momentum = 0.8;
  return config;
}

void take_steps(optim::LayerWiseDistributedOptimizer& optimizer, int64_t first, int64_t count) {
  for (int64_t step = first; step < first + count; ++step) {
    optimizer.bind_grads([&](const optim::ParamInfo& info) { return gradient_of(info, step); });
    BOOST_REQUIRE(optimizer.step().update_successful);
  }
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(new_rule, WithSignum)

BOOST_AUTO_TEST_CASE(it_steps_with_the_configurations_coefficient_and_a_groups) {
  signum_config().validate();
  optim::MegatronOptimizerOptions options;
  options.overrides = {{{.name = {"*.bias"}}, {{"boost", 1.0}}}};
  const auto optimizer =
      optim::get_megatron_optimizer(signum_config(), small_model(1, 17), options);
  std::map<std::string, at::Tensor> before;
  for (const auto* param : optimizer->get_parameters()) {
    before[param->model.info.name] = optim::master_of(*param).clone();
  }
  take_steps(*optimizer, 0, 1);
  for (const auto* param : optimizer->get_parameters()) {
    const std::string& name = param->model.info.name;
    const double moved = largest_difference(optim::master_of(*param), before.at(name));
    const double expected = name.ends_with(".bias") ? 0.02 : 0.01;  // lr is 0.01
    BOOST_TEST(std::abs(moved - expected) < 1e-6, name);
  }
}

BOOST_AUTO_TEST_CASE(its_results_do_not_depend_on_ranks_and_processes) {
  Run run = run_of_layers(1);
  run.config = signum_config();
  const Outcome expected = run_layout({}, run).front();
  for (const Layout& layout : {Layout{3, 3, optim::OwnershipPolicy::Balanced},
                               Layout{2, 2, optim::OwnershipPolicy::Lpt, true}}) {
    for (const Outcome& outcome : run_layout(layout, run)) {
      for (const auto& [name, tensor] : outcome.tensors) {
        BOOST_TEST(same_bits(tensor, expected.tensors.at(name)), name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(it_is_saved_and_restored_with_its_group_fields) {
  const test::TemporaryFolder folder;
  const auto whole = optim::get_megatron_optimizer(signum_config(), small_model(1, 17), {});
  take_steps(*whole, 0, 2);
  whole->save_state_dict_to_file(folder / "state.pt");
  optim::OptimizerConfig other = signum_config();
  other.sgd_momentum = 0.1;  // the file's goes before it
  const auto restored = optim::get_megatron_optimizer(other, small_model(1, 17), {});
  restored->load_state_dict_from_file(folder / "state.pt");
  take_steps(*whole, 2, 2);
  take_steps(*restored, 2, 2);
  const auto a = whole->get_parameters(), b = restored->get_parameters();
  BOOST_REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    BOOST_TEST(same_bits(optim::master_of(*a[i]), optim::master_of(*b[i])));
    BOOST_TEST(same_bits(a[i]->state.at("signum_buffer"), b[i]->state.at("signum_buffer")));
  }
}

BOOST_AUTO_TEST_CASE(its_traces_are_replayed_and_a_wrong_coefficient_is_noticed) {
  const test::TemporaryFolder folder;
  NamedTensors tensors = {{"init.w", random_tensor({4, 3}, 1)}};
  at::Tensor param = tensors["init.w"].clone();
  at::Tensor average = at::zeros({4, 3});
  for (int64_t step = 0; step < 3; ++step) {
    const std::string key = "step" + std::to_string(step);
    const at::Tensor grad = random_tensor({4, 3}, 10 + static_cast<uint64_t>(step));
    average = at::lerp(average, grad, 1 - 0.7);
    param = at::sub(param, average.sign(), 0.5);
    tensors["grad" + std::to_string(step) + ".w"] = grad;
    tensors[key + ".param.w"] = param.clone();
    tensors[key + ".signum_buffer.w"] = average.clone();
  }
  write_safetensors(folder / "mine.safetensors", tensors);
  for (const bool is_right : {true, false}) {
    std::ofstream(folder / "mine.json")
        << R"({"name": "mine", "config": {"class": "mine Signum", "lr": 0.5, "weight_decay": 0,)"
        << R"( "momentum": )" << (is_right ? "0.7" : "0.6")
        << R"(}, "params": {"w": [4, 3]}, "qkv_params": []})";
    optim::CheckOptions options;
    options.tolerance = optim::Tolerance{1e-6, 0};
    BOOST_TEST(optim::check_trace(folder / "mine.json", options).passed == is_right);
  }
}

BOOST_AUTO_TEST_CASE(a_row_that_is_not_whole_or_not_new_is_refused) {
  expect_error(ckpt::ErrorCode::InvalidArgument, "signum", [] { optim::add_rule(signum_row()); });
  optim::RuleDescription row = signum_row();
  row.name = "other";  // its settings are called signum
  expect_error(ckpt::ErrorCode::InvalidArgument, "other", [&] { optim::add_rule(row); });
  row.make = nullptr;
  expect_error(ckpt::ErrorCode::InvalidArgument, "other", [&] { optim::add_rule(row); });
}

BOOST_AUTO_TEST_CASE(every_row_of_the_library_is_made_and_keeps_the_states_it_says) {
  constexpr int64_t kShape[] = {3, 2};
  for (const optim::RuleDescription* const row : optim::rule_table()) {
    const auto rule = optim::make_rule(row->defaults());
    optim::ParamState state;
    rule->init_state(random_tensor({3, 2}, 1), state);
    const auto specs = row->states(row->defaults(), optim::ParamShape(kShape));
    BOOST_TEST(state.size() == specs.size(), row->name);
    for (const optim::StateSpec& spec : specs) {
      BOOST_TEST((state.at(std::string(spec.name)).sizes() == at::IntArrayRef(spec.shape)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
