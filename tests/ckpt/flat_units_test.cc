#include "format/joined/flat_units.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>

namespace ckpt {
namespace {

using Sizes = std::vector<uint64_t>;
constexpr uint64_t kAny = 0;  // of a unit without a state

std::vector<UnitParam> net(size_t layers, const std::vector<UnitParam>& layer) {
  std::vector<UnitParam> params{{"words.weight", 780}};
  for (size_t i = 0; i < layers; ++i) {
    for (UnitParam param : layer) {
      param.name = "layers." + std::to_string(i) + "." + param.name;
      params.push_back(std::move(param));
    }
  }
  params.push_back({"norm.weight", 60});
  params.push_back({"head.weight", 780});
  return params;
}

const std::vector<UnitParam> kLayer = {
    {"mlp.up.weight", 660}, {"mlp.up.bias", 110}, {"down.weight", 660}, {"norm.weight", 60}};

FlatUnits found(const std::vector<UnitParam>& model, const Sizes& sizes, uint64_t parts) {
  std::vector<std::optional<uint64_t>> rows;
  for (const uint64_t size : sizes) {
    rows.push_back(size == kAny ? std::nullopt : std::optional((size + parts - 1) / parts));
  }
  return find_flat_units(model, rows, parts);
}

BOOST_AUTO_TEST_SUITE(flat_units)

BOOST_AUTO_TEST_CASE(are_known_from_the_rows_of_ranks) {
  const Sizes of_layers{1620, 1490, 1490}, nested{1620, 720, 770, 720, 770}, root{4600};
  for (const Sizes& sizes : {of_layers, nested, root}) {
    for (const uint64_t parts : {1, 2, 7, 16}) {
      BOOST_TEST(found(net(2, kLayer), sizes, parts).elements == sizes, parts << " ranks");
    }
  }
}

BOOST_AUTO_TEST_CASE(count_a_shared_parameter_once) {
  auto model = net(2, kLayer);
  model.back().may_be_shared = true;
  for (const Sizes& sizes : {Sizes{840, 1490, 1490}, Sizes{1620, 1490, 1490}}) {
    BOOST_TEST(found(model, sizes, 16).elements == sizes);
  }
}

BOOST_AUTO_TEST_CASE(may_have_no_state) {
  const Sizes sizes{kAny, 1490, 1490};
  const FlatUnits units = found(net(2, kLayer), sizes, 16);
  BOOST_TEST(units.problem == "");
  BOOST_TEST(std::ranges::equal(units.elements.begin() + 1, units.elements.end(), sizes.begin() + 1,
                                sizes.end()));
}

BOOST_AUTO_TEST_CASE(are_not_guessed) {
  const std::vector<UnitParam> close = {
      {"a.weight", 100}, {"a.bias", 1}, {"b.weight", 103}, {"c.scale", 1}, {"d.scale", 1}};
  const struct {
    std::vector<UnitParam> model;
    Sizes sizes;
    uint64_t parts;
    std::string said;
  } kCases[] = {
      {net(2, kLayer), {1620, 1490}, 4, "no choice of modules"},
      {net(2, kLayer), {1620, 1490, 1500}, 4, "no choice of modules"},
      {net(2, kLayer), {1490, 1490, 1620}, 4, "no choice of modules"},
      {close, {103, 103}, 16, "flat parameter 0 in more than one way"},
      {{{std::string(200, '.') + "w", 4}}, {4}, 2, "too deeply"},
  };
  for (const auto& [model, sizes, parts, said] : kCases) {
    const FlatUnits units = found(model, sizes, parts);
    BOOST_TEST(units.elements.empty());
    BOOST_TEST(units.problem.find(said) != std::string::npos, units.problem);
  }
}

BOOST_AUTO_TEST_CASE(are_found_among_many_experts) {
  std::vector<UnitParam> layer = kLayer;
  uint64_t of_layer = 1490;
  for (size_t expert = 0; expert < 256; ++expert) {
    for (const char* name : {"gate", "up", "down"}) {
      layer.push_back({"mlp.experts." + std::to_string(expert) + "." + name + ".weight", 500});
      of_layer += 500;
    }
  }
  Sizes sizes(62, of_layer);
  sizes[0] = 1620;
  BOOST_TEST(found(net(61, layer), sizes, 512).elements == sizes);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ckpt
