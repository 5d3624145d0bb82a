#include <optim/optimizer_config.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <ckpt/error.h>

// The table of fields in docs/optimizer.md is what this file says: complete, each field with a test
// that exists, refusals in the library's own words.
BOOST_AUTO_TEST_SUITE(config_table)

using optim::OptimizerConfig;
namespace fs = std::filesystem;

struct Row {
  std::string field;
  std::string effect;  // empty: refused by `refused`, or together with another field
  std::string test;
  std::function<void(OptimizerConfig&)> refused = nullptr;
};

std::vector<Row> rates() {
  return {{"lr", "rate of all groups, before the schedule", "recorded_rates_are_the_same_doubles"},
          {"min_lr", "the schedule ends there", "recorded_rates_are_the_same_doubles"},
          {"decoupled_lr", "max_lr of input and output layers",
           "groups_are_those_that_megatron_core_makes"},
          {"decoupled_min_lr", "their min_lr", "groups_are_those_that_megatron_core_makes"},
          {"weight_decay", "of a group, times its wd_mult", "groups_and_owners_are_the_references"},
          {"apply_wd_to_qk_layernorm", "q/k layer norms are decayed",
           "groups_are_those_that_megatron_core_makes"}};
}

std::vector<Row> precision() {
  return {
      {"fp8_recipe", "", "", [](auto& c) { c.fp8_recipe = "delayed"; }},
      {"fp16", "fp16 parameters, fp32 masters, loss scaling",
       "an_overflow_on_one_rank_skips_the_step_on_all"},
      {"bf16", "bf16 parameters, fp32 masters", "masters_exist_for_bf16_and_round_back_to_it"},
      {"reuse_grad_buf_for_mxfp8_param_ag", "", "",
       [](auto& c) { c.reuse_grad_buf_for_mxfp8_param_ag = true; }},
      {"params_dtype", "the caller makes the weights; must agree with bf16 and fp16",
       "values_that_make_no_sense_are_refused_with_the_field"},
      {"use_precision_aware_optimizer", "the next fields take effect, for every rule",
       "precision_aware_results_do_not_depend_on_the_layout"},
      {"store_param_remainders", "a bf16 parameter and 16 bits are its master, exactly",
       "remainders_are_masters_to_the_bit"},
      {"main_grads_dtype", "gradients must have this type",
       "gradients_of_another_type_than_main_grads_dtype_are_refused"},
      {"main_params_dtype", "float32, or float16 with a scale",
       "precision_aware_results_do_not_depend_on_the_layout"},
      {"exp_avg_dtype", "of exp_avg and momentum_buffer: float32, bfloat16, float16, uint8 (fp8)",
       "states_of_fewer_bits_stay_near_those_of_fp32"},
      {"exp_avg_sq_dtype", "the same, of exp_avg_sq",
       "states_of_fewer_bits_stay_near_those_of_fp32"},
      {"optimizer", "adam, sgd, lion, muon, adaptive_muon, soap",
       "every_recorded_step_of_the_fixtures_is_reproduced"},
      {"loss_scale", "static scale", "a_power_of_two_as_loss_scale_changes_no_bit"},
      {"initial_loss_scale", "first dynamic scale", "the_dynamic_scale_takes_the_recorded_way"},
      {"min_loss_scale", "least dynamic scale", "the_dynamic_scale_takes_the_recorded_way"},
      {"loss_scale_window", "steps without overflow before it doubles",
       "the_dynamic_scale_takes_the_recorded_way"},
      {"hysteresis", "overflows before it halves", "the_dynamic_scale_takes_the_recorded_way"}};
}

std::vector<Row> algorithms() {
  const std::string reaches = "every_coefficient_of_the_configuration_reaches_its_rule";
  return {
      {"adam_beta1", "of Adam", reaches},
      {"adam_beta2", "of Adam", reaches},
      {"adam_eps", "of Adam; groups may override it (`eps`)", reaches},
      {"decoupled_weight_decay", "AdamW; else decay joins the gradient", reaches},
      {"sgd_momentum", "of SGD; 0: no state", reaches},
      {"muon_momentum", "of Muon", reaches},
      {"muon_split_qkv", "query, key and value apart",
       "a_split_reaches_muon_only_where_the_configuration_wants_it"},
      {"muon_nesterov", "of Muon", reaches},
      {"muon_scale_mode", "spectral, unit_rms_norm, shape_scaling", reaches},
      {"muon_fp32_matmul_prec", "medium: bf16 products; high and highest: fp32", reaches},
      {"muon_coefficient_type",
       "simple, quintic, polar_express, cans, aol, deepseekv4, cubic5; custom needs rows in code",
       reaches},
      {"muon_num_ns_steps", "1 to 100; 5 with cubic5", reaches},
      {"muon_tp_mode", "blockwise, duplicated, distributed, over the process group `tp`",
       "duplicated_steps_have_the_bits_of_one_rank"},
      {"muon_extra_scale_factor", "times the update", reaches},
      {"muon_scalar_optimizer", "adam or lion",
       "muon_scalar_optimizer_names_what_updates_the_rest"},
      {"lion_beta1", "of Lion", reaches},
      {"lion_beta2", "of Lion", reaches},
      {"soap_shampoo_beta", "of SOAP's factors", reaches},
      {"soap_precondition_frequency",
       "steps between two bases of SOAP; above 1 only as emerging_optimizers 0.2", reaches},
      {"soap_use_kl_shampoo", "KL-Shampoo's factors", reaches},
      {"adaptive_muon_moment2_method", "adamuon, normuon, namo", reaches},
      {"adaptive_muon_beta2", "of its second moment", reaches},
      {"adaptive_muon_eps", "of its second moment; groups may override it (`eps`)", reaches}};
}

std::vector<Row> running() {
  const std::string offload_bits = "fraction_overlap_and_pinning_change_no_bit";
  return {
      {"use_distributed_optimizer", "`DistributedOptimizer` updates ranges: adam, sgd, lion; CPU",
       "ranges_have_the_bits_of_whole_parameters"},
      {"use_layer_wise_distributed_optimizer", "experts join the dense optimizers",
       "experts_have_an_optimizer_of_their_own_unless_sharding_is_layer_wise"},
      {"overlap_param_gather",
       "parameters travel while later ones are updated; same bits, but for Muon's on a GPU "
       "(section 9)",
       "results_do_not_depend_on_ranks_processes_or_ownership"},
      {"overlap_param_gather_with_optimizer_step",
       "the first model chunk travels while the others are updated; same bits",
       "overlap_of_gathers_changes_nothing"},
      {"optimizer_cpu_offload",
       "part of what lies on a GPU is updated on the CPU (section 9); no effect on the CPU",
       offload_bits},
      {"optimizer_offload_fraction", "of the elements; same bits", offload_bits},
      {"use_torch_optimizer_for_cpu_offload", "no effect, as in the reference",
       "use_torch_optimizer_for_cpu_offload_changes_no_bit"},
      {"overlap_cpu_optimizer_d2h_h2d", "parameters are updated while others travel; same bits",
       offload_bits},
      {"pin_cpu_grads", "page-locked memory for gradients on the CPU", offload_bits},
      {"pin_cpu_params", "the same for parameters that travel back", offload_bits},
      {"clip_grad", "largest norm; 0: no clipping",
       "norms_zeros_and_clipped_gradients_are_the_recorded_ones"},
      {"log_num_zeros_in_grad", "step() counts zeros", "timers_hear_of_every_section_of_a_step"},
      {"barrier_with_L1_time", "a barrier before each timed section",
       "timers_hear_of_every_section_of_a_step"},
      {"timers", "called around the sections of step()", "timers_hear_of_every_section_of_a_step"},
      {"config_logger_dir", "the configuration as one JSON file per process",
       "the_configuration_is_written_where_its_logger_dir_says"},
      {"optimizer_cuda_graph", "steps on a GPU are recorded once and replayed; refused on the CPU",
       "a_graph_is_recorded_on_a_device_and_refused_on_the_cpu"}};
}

std::vector<Row> all_rows() {
  std::vector<Row> rows = rates();
  for (const auto& part : {precision(), algorithms(), running()}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

std::string source_root() { return std::string(SHARDWISE_GOLDEN_DIR) + "/../.."; }

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What validate() says about a field that is refused.
std::string refusal(const Row& row) {
  OptimizerConfig config;
  row.refused(config);
  try {
    config.validate();
  } catch (const ckpt::Error& error) {
    BOOST_TEST((error.code() == ckpt::ErrorCode::Unsupported));
    const std::string with =
        error.where().key == row.field ? "" : "with `" + error.where().key + "`";
    return "refused" + (with.empty() ? "" : " " + with) + ": " + error.problem();
  }
  return "accepted";
}

std::string table() {
  std::string text = "| field | works, or is refused |\n|---|---|\n";
  for (const Row& row : all_rows()) {
    text += "| `" + row.field + "` | " + (row.refused ? refusal(row) : row.effect) + " |\n";
  }
  return text;
}

BOOST_AUTO_TEST_CASE(every_field_has_a_row) {
  std::set<std::string> fields = {"timers"};
  const auto json = nlohmann::json::parse(to_json(OptimizerConfig{}));
  for (const auto& [field, value] : json.items()) fields.insert(field);
  std::set<std::string> rows;
  for (const Row& row : all_rows()) BOOST_TEST(rows.insert(row.field).second, row.field);
  BOOST_TEST(rows == fields, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(every_test_that_is_named_exists) {
  std::string sources;
  for (const auto& entry : fs::recursive_directory_iterator(source_root() + "/tests/optim")) {
    if (entry.path().extension() == ".cc") sources += text_of(entry.path());
  }
  for (const Row& row : all_rows()) {
    if (row.refused) continue;
    const bool exists = sources.find("CASE(" + row.test) != std::string::npos;
    BOOST_TEST(exists, row.field << ": " << row.test);
  }
}

BOOST_AUTO_TEST_CASE(the_documentation_has_this_table) {
  const std::string page = text_of(source_root() + "/docs/optimizer.md");
  BOOST_TEST((page.find(table()) != std::string::npos), "docs/optimizer.md should have:\n"
                                                            << table());
}

BOOST_AUTO_TEST_SUITE_END()
