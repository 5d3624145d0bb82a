#include <training/key_kind.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

namespace {

struct Row {
  const char *file, *key, *kind;
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.key; }

const Row kRows[] = {
    // Megatron
    {"", "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight", "optimizer_state"},
    {"", "chained_1.optimizer.state.fp32_param.output_layer.weight", "optimizer_state"},
    {"", "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype.bucket_idx_0.exp_avg",
     "optimizer_state"},
    {"mp_rank_00/layer_wise_optimizer_1.pt", "/0/fp32_from_fp16_params/0/0", "optimizer_state"},
    {"mp_rank_00/distrib_optim.pt", "/0/exp_avg", "optimizer_state"},
    {"mp_rank_00/model_optim_rng.pt", "/model/output_layer.weight", "model"},
    {"mp_rank_00/model_optim_rng.pt", "/optimizer/optimizer/state/0/exp_avg", "optimizer_state"},
    {"mp_rank_00/model_optim_rng.pt", "/rng_state/0/torch_rng_state", "rng_state"},
    {"common.pt", "/tensor", "common_state"},
    {"", "decoder.layers.mlp.linear_fc1.weight", "model"},
    // PyTorch: FSDP and DCP
    {"", "optimizer.state.0.weight.exp_avg", "optimizer_state"},
    {"", "optim.state.layers.0.weight.step", "optimizer_state"},
    {"", "app.optim.param_groups.layers.0.weight.lr", "optimizer_state"},
    {"", "model.layers.0.weight", "model"},
    {"", "app.model.layers.0.weight", "model"},
    {"", "state.layers.0.weight.exp_avg", "optimizer_state"},
    {"", "state.layers.0.weight.exp_avg_sq_row", "optimizer_state"},
    {"", "state.layers.0.weight.step", "optimizer_state"},
    {"", "state.layers.0.weight", "model"},
    // training loops
    {"", "/exp_avg_sq_col/0.weight", "optimizer_state"},
    {"", "/ema/0.weight", "average"},
    {"", "/model_ema/0.weight", "average"},
    {"", "/state_dict/model_ema.0.weight", "average"},
    {"", "/ema_state_dict/module.0.weight", "average"},
    {"", "/state_dict/cinema.0.weight", "model"},
    {"", "/model/0.ema.weight", "model"},
    {"", "/loss", "progress"},
    {"", "/best_loss", "progress"},
    {"", "ntokens_seen", "progress"},
    {"", "/model/loss.weight", "model"},
    {"", "/rng", "rng_state"},
    {"", "/rng/cpu", "rng_state"},
    {"", "/torch_manual_seed", "rng_state"},
    {"", "/model/strng.weight", "model"},
    {"", "/optimizer_state_dict/state/0/exp_avg", "optimizer_state"},
    {"", "/optimizer_states/0/state/0/exp_avg", "optimizer_state"},
    {"", "/optimizerG/state/0/exp_avg", "optimizer_state"},
    {"", "/d_optim/state/0/exp_avg", "optimizer_state"},
    {"", "/state/0/exp_avg", "optimizer_state"},
    {"", "/state_dict/0.weight", "model"},
    // parameters with such names
    {"", "/state_dict/optimizer.weight", "model"},
    {"", "/model/learned.optimizer.gate", "model"},
    {"", "model.learned_optimizer.cell.weight", "model"},
    {"", "optimal_transport.weight", "model"},
    {"", "/state/weight", "model"},
    {"", "", "model"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(key_kind)

BOOST_DATA_TEST_CASE(a_key_says_what_it_belongs_to, kRows) {
  BOOST_TEST(name(optim::kind_of_key(sample.file, sample.key)) == sample.kind);
}

BOOST_AUTO_TEST_SUITE_END()
