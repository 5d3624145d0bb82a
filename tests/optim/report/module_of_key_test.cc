#include "report/logical_names.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

namespace {

struct Row {
  const char *key, *module;
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.key; }

const Row kRows[] = {
    {"decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0"},
    {"decoder.layers.10.mlp.experts.local_experts.3.linear_fc1.weight", "decoder.layers.10"},
    {"decoder.layers.mlp.linear_fc1.weight", "decoder.layers.mlp.linear_fc1"},  // stacked
    {"decoder.final_layernorm.weight", "decoder.final_layernorm"},
    {"output_layer.weight", "output_layer"},
    {"optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0"},
    {"chained_1.optimizer.state.fp32_param.output_layer.weight", "output_layer"},
    {"app.optim.state.layers.3.attention.wq.weight.exp_avg", "layers.3"},
    {"/optimizer/state/3/exp_avg", "optimizer"},
    {"/model/decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0"},
    {"/state_dict/0.weight", "0"},
    {"model.embed_tokens.weight", "embed_tokens"},
    {"args", "args"},
    {"", ""},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(module_of_key)

BOOST_DATA_TEST_CASE(a_key_belongs_to_a_module, kRows) {
  BOOST_TEST(optim::module_of_key(sample.key) == sample.module);
}

BOOST_AUTO_TEST_SUITE_END()
