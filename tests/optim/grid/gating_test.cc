// Gated linear units are known by the shapes of their matrices.
#include "grid/gating.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "support/errors.h"

using optim::GatingByShapes;

namespace {

constexpr const char* kMlp[] = {
    "decoder.layers.0.mlp.linear_fcN.weight",
    "decoder.layers.3.mlp.shared_experts.linear_fcN.weight",
    "decoder.layers.1.mlp.experts.local_experts.7.linear_fcN.weight",
    "decoder.layers.1.mlp.experts.linear_fcN.weight7",
    "mtp.layers.0.mtp_model_layer.mlp.linear_fcN.weight",
};

std::string matrix(std::string mlp, char number) {
  mlp[mlp.find("fcN") + 2] = number;
  return mlp;
}

void add(GatingByShapes& shapes, const std::string& mlp, uint64_t rows, uint64_t columns) {
  shapes.add(matrix(mlp, '2'), {16, columns});
  shapes.add(matrix(mlp, '1'), {rows, 16});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gating)

BOOST_DATA_TEST_CASE(two_rows_for_a_column_are_a_gated_unit, boost::unit_test::data::make(kMlp),
                     mlp) {
  GatingByShapes gated, plain;
  add(gated, mlp, 128, 64);
  add(plain, mlp, 64, 64);
  BOOST_TEST(gated.is_gated().value());
  BOOST_TEST(!plain.is_gated().value());
}

BOOST_AUTO_TEST_CASE(one_matrix_alone_or_another_ratio_tells_nothing) {
  GatingByShapes shapes;
  shapes.add(matrix(kMlp[0], '1'), {128, 16});
  shapes.add(matrix(kMlp[1], '2'), {16, 64});
  shapes.add("decoder.layers.0.mlp.linear_fc1.bias", {128});
  shapes.add("decoder.layers.0.mlp.linear_fc2.bias", {64});
  add(shapes, kMlp[2], 96, 64);
  add(shapes, kMlp[3], 0, 0);
  BOOST_TEST(!shapes.is_gated().has_value());
}

BOOST_AUTO_TEST_CASE(layers_that_differ_are_refused_by_name) {
  GatingByShapes shapes;
  add(shapes, kMlp[0], 128, 64);
  add(shapes, kMlp[1], 64, 64);
  const auto error = test::error_of([&] { shapes.is_gated(); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
  BOOST_TEST(error->where().key == matrix(kMlp[0], '1'));
  BOOST_TEST(test::contains(error->problem(), matrix(kMlp[1], '1')));
}

BOOST_AUTO_TEST_SUITE_END()
