#include "format/joined/flat_units.h"

#include <gtest/gtest.h>

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

TEST(FlatUnits, AreKnownFromTheRowsOfRanks) {
  const Sizes of_layers{1620, 1490, 1490}, nested{1620, 720, 770, 720, 770}, root{4600};
  for (const Sizes& sizes : {of_layers, nested, root}) {
    for (const uint64_t parts : {1, 2, 7, 16}) {
      EXPECT_EQ(found(net(2, kLayer), sizes, parts).elements, sizes) << parts;
    }
  }
}

TEST(FlatUnits, CountASharedParameterOnce) {
  auto model = net(2, kLayer);
  model.back().may_be_shared = true;
  for (const Sizes& sizes : {Sizes{840, 1490, 1490}, Sizes{1620, 1490, 1490}}) {
    EXPECT_EQ(found(model, sizes, 16).elements, sizes);
  }
}

TEST(FlatUnits, MayHaveNoState) {
  const Sizes sizes{kAny, 1490, 1490};
  const FlatUnits units = found(net(2, kLayer), sizes, 16);
  EXPECT_TRUE(units.problem.empty()) << units.problem;
  EXPECT_TRUE(std::ranges::equal(units.elements.begin() + 1, units.elements.end(),
                                 sizes.begin() + 1, sizes.end()));
}

TEST(FlatUnits, AreNotGuessed) {
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
    EXPECT_TRUE(units.elements.empty());
    EXPECT_NE(units.problem.find(said), std::string::npos) << units.problem;
  }
}

TEST(FlatUnits, AreFoundAmongManyExperts) {
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
  EXPECT_EQ(found(net(61, layer), sizes, 512).elements, sizes);
}

}  // namespace
}  // namespace ckpt
