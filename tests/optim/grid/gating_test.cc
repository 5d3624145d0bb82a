// Gated linear units are known by the shapes of their matrices.
#include "grid/glu_rows.h"

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

// A LLaVA-like model: args speak of its language model alone.
BOOST_AUTO_TEST_CASE(each_submodel_has_a_setting_of_its_own) {
  GatingByShapes shapes;
  add(shapes, "language_model.decoder.layers.0.mlp.linear_fcN.weight", 128, 64);
  add(shapes, "vision_model.decoder.layers.0.mlp.linear_fcN.weight", 64, 64);
  add(shapes, "vision_projection.encoder.linear_fcN.weight", 64, 64);
  BOOST_TEST(shapes.is_gated().value());
}

BOOST_AUTO_TEST_CASE(of_several_submodels_none_of_which_is_known_nothing_is_told) {
  GatingByShapes shapes;
  add(shapes, "first.decoder.layers.0.mlp.linear_fcN.weight", 128, 64);
  add(shapes, "second.decoder.layers.0.mlp.linear_fcN.weight", 64, 64);
  BOOST_TEST(!shapes.is_gated().has_value());
}

BOOST_AUTO_TEST_CASE(matrices_stacked_over_layers_and_experts_tell_the_same) {
  for (const uint64_t rows : {32u, 64u}) {
    GatingByShapes shapes;
    shapes.add("language_model.decoder.layers.mlp.experts.experts.linear_fc2.weight",
               {2, 4, 16, 32});
    shapes.add("language_model.decoder.layers.mlp.experts.experts.linear_fc1.weight",
               {2, 4, rows, 16});
    BOOST_TEST(shapes.is_gated().value() == (rows == 64));
  }
}

BOOST_AUTO_TEST_SUITE_END()
