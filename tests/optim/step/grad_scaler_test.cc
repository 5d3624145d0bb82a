#include <optim/checkpoint_bridge.h>
#include <optim/grad_scaler.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "optim/expect_error.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(grad_scaler)

BOOST_AUTO_TEST_CASE(the_dynamic_scale_takes_the_recorded_way) {
  std::ifstream file(std::string(SHARDWISE_GOLDEN_DIR) + "/steps/dynamic_grad_scaler.json");
  for (const auto& run : nlohmann::json::parse(file)) {
    const auto& config = run["config"];
    optim::DynamicGradScaler scaler({.initial_scale = config["initial_scale"],
                                     .min_scale = config["min_scale"],
                                     .growth_factor = config["growth_factor"],
                                     .backoff_factor = config["backoff_factor"],
                                     .growth_interval = config["growth_interval"],
                                     .hysteresis = config["hysteresis"]});
    for (const auto& row : run["trace"]) {
      scaler.update(row["found_inf"].get<bool>());
      BOOST_TEST(scaler.scale() == row["scale"].get<double>());
      BOOST_TEST(scaler.inverse_scale() == row["inv_scale"].get<float>());
      BOOST_TEST(scaler.growth_tracker() == row["growth_tracker"].get<int64_t>());
      BOOST_TEST(scaler.hysteresis_tracker() == row["hysteresis_tracker"].get<int64_t>());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_loaded_scaler_goes_on_where_the_saved_one_was) {
  const optim::DynamicScaling scaling = {.initial_scale = 1024, .growth_interval = 3};
  optim::DynamicGradScaler saved(scaling), loaded(scaling);
  for (const bool found : {false, true, true, false, false}) saved.update(found);
  loaded.load_state_dict(saved.state_dict());
  saved.update(false);
  loaded.update(false);
  BOOST_TEST(loaded.scale() == saved.scale());
  BOOST_TEST(loaded.scale() == 1024.0);  // shrunk once, grown once
}

BOOST_AUTO_TEST_CASE(the_configuration_chooses_the_scaler) {
  optim::OptimizerConfig config;
  BOOST_TEST(optim::make_grad_scaler(config) == nullptr);
  config.fp16 = true;
  config.initial_loss_scale = 64;
  BOOST_TEST(optim::make_grad_scaler(config)->scale() == 64.0);
  config.loss_scale = 16;
  const auto constant = optim::make_grad_scaler(config);
  constant->update(true);
  BOOST_TEST(constant->scale() == 16.0);
  BOOST_TEST(constant->state_dict().empty());
}

BOOST_AUTO_TEST_CASE(a_scale_that_would_overflow_stays) {
  optim::DynamicGradScaler scaler({.initial_scale = 3e38, .growth_interval = 1});
  scaler.update(false);
  BOOST_TEST(scaler.scale() == static_cast<double>(3e38F));
}

BOOST_AUTO_TEST_CASE(settings_and_states_without_sense_are_refused) {
  const auto refused = [](const char* key, const optim::DynamicScaling& scaling) {
    expect_error(ckpt::ErrorCode::InvalidArgument, key, [&] { optim::DynamicGradScaler{scaling}; });
  };
  refused("scale", {.initial_scale = 0});
  refused("min_scale", {.initial_scale = 1, .min_scale = 2});
  refused("growth_factor", {.growth_factor = 1});
  refused("backoff_factor", {.backoff_factor = 1});
  refused("growth_interval", {.growth_interval = 0});
  refused("hysteresis", {.hysteresis = 0});
  optim::DynamicGradScaler scaler({});
  optim::StateDict state = scaler.state_dict();
  optim::put(state, "scale", -1.0);
  expect_error(ckpt::ErrorCode::InvalidArgument, "grad_scaler",
               [&] { scaler.load_state_dict(state); });
}

BOOST_AUTO_TEST_SUITE_END()
