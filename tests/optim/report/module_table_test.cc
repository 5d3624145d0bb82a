// The table of a model's modules, and its largest tensors.
#include <training/module_table.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

#include "report/logical_names.h"

namespace {

using ckpt::DType;
using optim::KeyKind;
using optim::LogicalTensor;

LogicalTensor weight(std::string name, ckpt::Extents shape, DType dtype = DType::BFloat16) {
  const uint64_t bytes = ckpt::element_count(shape) * ckpt::bytes_per_element(dtype);
  return {KeyKind::Model, std::move(name), {}, dtype, std::move(shape), bytes};
}

LogicalTensor state(std::string name, ckpt::Extents shape) {
  const uint64_t bytes = ckpt::element_count(shape) * 4;
  return {KeyKind::OptimizerState, std::move(name),  "exp_avg",
          DType::Float32,          std::move(shape), bytes};
}

std::string rows_text(const std::vector<LogicalTensor>& tensors) {
  std::string text;
  for (const auto& row : optim::make_module_table(tensors).rows) {
    text += row.name + " " + std::to_string(row.size.parameter_count) + " " +
            std::to_string(row.size.model_bytes) + " " + std::to_string(row.size.optimizer_bytes) +
            "\n";
  }
  return text;
}

struct OrderRow {
  const char* first;
  const char* second;
};
std::ostream& operator<<(std::ostream& out, const OrderRow& row) { return out << row.first; }

const OrderRow kOrders[] = {{"layers.2", "layers.10"},
                            {"layers.2.b", "layers.10.a"},
                            {"a", "b"},
                            {"a", "a.b"},
                            {"1", "a"},
                            {"expert9x", "expert10"},
                            {"18446744073709551616", "18446744073709551617"},
                            {"", "0"},
                            {"01", "1"}};

}  // namespace

BOOST_AUTO_TEST_SUITE(module_table)

BOOST_AUTO_TEST_CASE(layers_of_equal_sizes_are_one_row) {
  BOOST_TEST(
      rows_text({weight("decoder.layers.0.fc.weight", {4, 2}),
                 weight("decoder.layers.1.fc.weight", {4, 2}),
                 weight("decoder.final_norm.weight", {2}), weight("embedding.word.weight", {3, 2}),
                 state("decoder.layers.0.fc.weight", {4, 2}),
                 state("decoder.layers.1.fc.weight", {4, 2})}) ==
      "decoder.layers.0-1 16 32 64\n"
      "embedding 6 12 0\n"
      "decoder.final_norm 2 4 0\n");
}

BOOST_AUTO_TEST_CASE(layers_that_differ_are_rows_of_their_own) {
  BOOST_TEST(rows_text({weight("layers.0.w", {4}), weight("layers.1.w", {8}),
                        weight("layers.2.w", {4}), weight("layers.10.w", {4})}) ==
             "layers.0,2,10 12 24 0\n"
             "layers.1 8 16 0\n");
}

BOOST_AUTO_TEST_CASE(only_the_first_ranges_of_equal_layers_are_listed) {
  std::vector<LogicalTensor> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(weight("h." + std::to_string(i) + ".w", {i % 2 == 0 ? 2u : 3u}));
  }
  BOOST_TEST(rows_text(tensors) == "h.1,3,5,... 15 30 0\nh.0,2,4,... 10 20 0\n");
}

BOOST_AUTO_TEST_CASE(names_without_layers_are_modules_by_their_first_step) {
  BOOST_TEST(rows_text({weight("model.a.weight", {2}), weight("model.b.weight", {3}),
                        weight("lone", {1})}) == "model 5 10 0\nlone 1 2 0\n");
}

BOOST_AUTO_TEST_CASE(numbers_at_the_front_or_the_end_of_a_name) {
  BOOST_TEST(rows_text({weight("0.weight", {2}), weight("2.weight", {2}), weight("x.7", {1})}) ==
             "0,2 4 8 0\nx 1 2 0\n");
}

BOOST_AUTO_TEST_CASE(state_that_names_no_parameter_is_counted_apart) {
  const std::vector<LogicalTensor> tensors = {weight("a.w", {2}), state("", {5})};
  const auto table = optim::make_module_table(tensors);
  BOOST_TEST(table.rows.size() == 1u);
  BOOST_TEST(table.unnamed_optimizer_bytes == 20u);
}

BOOST_AUTO_TEST_CASE(integers_are_bytes_of_the_model_and_no_parameters) {
  BOOST_TEST(rows_text({weight("bn.num_batches_tracked", {}, DType::Int64),
                        weight("bn.weight", {3})}) == "bn 3 14 0\n");
  const std::vector<LogicalTensor> tensors = {weight("n", {4}, DType::Int64), weight("w", {3}),
                                              state("w", {3})};
  BOOST_TEST(optim::count_parameters(tensors) == 3u);
}

BOOST_AUTO_TEST_CASE(the_largest_tensors_are_the_models) {
  const std::vector<LogicalTensor> tensors = {state("a", {100}), weight("l.10", {3}),
                                              weight("l.2", {3}), weight("b", {1})};
  const auto largest = optim::largest_tensors(tensors, 2);
  BOOST_REQUIRE(largest.size() == 2u);
  BOOST_TEST(largest[0]->name == "l.2");
  BOOST_TEST(largest[1]->name == "l.10");
  const std::vector<LogicalTensor> states = {state("a", {100})};
  BOOST_TEST(optim::largest_tensors(states, 2).size() == 1u);
  BOOST_TEST(optim::largest_tensors({}, 2).empty());
}

BOOST_DATA_TEST_CASE(numbers_in_names_are_compared_as_numbers, kOrders) {
  BOOST_TEST(optim::natural_less(sample.first, sample.second));
  BOOST_TEST(!optim::natural_less(sample.second, sample.first));
  BOOST_TEST(!optim::natural_less(sample.first, sample.first));
}

BOOST_AUTO_TEST_CASE(rows_are_added_up) {
  const std::vector<optim::ModuleRow> rows = {{"a", {1, 2, 3}, 0}, {"b", {10, 20, 30}, 2}};
  BOOST_TEST((optim::sum_of(rows) == optim::ModuleSize{11, 22, 33}));
  BOOST_TEST((optim::sum_of({}) == optim::ModuleSize{}));
}

BOOST_AUTO_TEST_SUITE_END()
