#include "format/joined/flat_params.h"

#include <boost/test/unit_test.hpp>

#include <numeric>

namespace ckpt {
namespace {

using Counts = std::vector<std::vector<uint64_t>>;  // of each parameter on each part
using Unit = std::vector<size_t>;

// As FSDP1 lays units out.
Counts counts_of(const std::vector<UnitParam>& model, const std::vector<Unit>& units,
                 uint64_t alignment, uint64_t parts) {
  Counts counts(model.size());
  for (const Unit& unit : units) {
    std::vector<uint64_t> begins;
    uint64_t end = 0;
    for (const size_t param : unit) {
      begins.push_back((end + alignment - 1) / alignment * alignment);
      end = begins.back() + model[param].elements;
    }
    const uint64_t each = (end + parts - 1) / parts;
    for (size_t i = 0; i < unit.size(); ++i) {
      counts[unit[i]].assign(parts, 0);
      for (uint64_t j = 0; j < model[unit[i]].elements; ++j) {
        ++counts[unit[i]][(begins[i] + j) / each];
      }
    }
  }
  return counts;
}

Counts counts_in(const FlatPlaces& places, uint64_t parts) {
  Counts counts(places.of_params.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    for (uint64_t part = 0; places.of_params[i] && part < parts; ++part) {
      counts[i].push_back(places.of_params[i]->count(part));
    }
  }
  return counts;
}

const std::vector<UnitParam> kNet = {{"words.weight", 781},       {"layers.0.up.weight", 663},
                                     {"layers.0.up.bias", 11},    {"layers.0.norm.weight", 7},
                                     {"layers.1.up.weight", 663}, {"layers.1.up.bias", 11},
                                     {"layers.1.norm.weight", 7}, {"head.weight", 781}};
const std::vector<Unit> kLayers = {{0, 7}, {1, 2, 3}, {4, 5, 6}};
const std::vector<Unit> kNested = {{0, 7}, {1, 2}, {3}, {4, 5}, {6}};
const std::vector<Unit> kRoot = {{0, 1, 2, 3, 4, 5, 6, 7}};

BOOST_AUTO_TEST_SUITE(flat_params)

BOOST_AUTO_TEST_CASE(are_where_fsdp_puts_them_for_other_parts) {
  for (const auto& units : {kLayers, kNested, kRoot}) {
    for (const uint64_t alignment : {8, 4}) {
      for (const auto& [parts, wanted] : {std::pair(3, 2), {3, 5}, {4, 3}, {5, 64}}) {
        const Counts known = counts_of(kNet, units, alignment, parts);
        const FlatPlaces found = find_flat_places(kNet, known, {}, wanted);
        const bool is_told = found.problem.empty();
        BOOST_TEST(!found.is_contradiction);
        if (!is_told) continue;
        BOOST_TEST(counts_in(found, wanted) == counts_of(kNet, units, alignment, wanted));
      }
    }
  }
  BOOST_TEST(find_flat_places(kNet, counts_of(kNet, kLayers, 8, 3), {}, 4).problem == "");
}

BOOST_AUTO_TEST_CASE(may_be_frozen_or_tied) {
  Counts known = counts_of(kNet, kLayers, 4, 3);
  const Counts all = counts_of(kNet, kLayers, 4, 4);
  for (const size_t frozen : {2, 6}) known[frozen].clear();
  const FlatPlaces found = find_flat_places(kNet, known, {}, 4);
  BOOST_TEST(found.problem == "");
  for (const size_t param : {0, 1, 3, 4, 5, 7})
    BOOST_TEST(counts_in(found, 4)[param] == all[param]);
  known = counts_of(kNet, {{0}, {1, 2, 3}, {4, 5, 6}}, 4, 3);
  const FlatPlaces tied = find_flat_places(kNet, known, {7}, 4);
  BOOST_TEST(tied.problem == "");
  BOOST_TEST(counts_in(tied, 4) == counts_of(kNet, {{0}, {1, 2, 3}, {4, 5, 6}}, 4, 4));
}

BOOST_AUTO_TEST_CASE(are_not_guessed) {
  Counts known = counts_of(kNet, kLayers, 8, 3);
  std::swap(known[1][0], known[1][2]);
  BOOST_TEST(find_flat_places(kNet, known, {}, 2).is_contradiction);
  const std::vector<UnitParam> small = {{"a", 1}, {"b", 1}};
  known = counts_of(small, {{0, 1}}, 4, 2);  // with or without alignment
  BOOST_TEST(find_flat_places(small, known, {}, 3).problem.find("more than one") !=
             std::string::npos);
  std::vector<UnitParam> frozen = kNet;
  for (int i = 0; i < 20; ++i) frozen.push_back({"frozen." + std::to_string(i) + ".weight", 5});
  known = counts_of(kNet, kLayers, 8, 3);
  known.resize(frozen.size());
  BOOST_TEST(find_flat_places(frozen, known, {}, 2).problem.find("too many") != std::string::npos);
  BOOST_TEST(find_flat_places(kNet, Counts(kNet.size()), {}, 2).of_params.empty());
}

BOOST_AUTO_TEST_CASE(are_found_among_many_experts) {
  std::vector<UnitParam> model{{"words.weight", 7800}};
  std::vector<Unit> units{{0}};
  for (size_t layer = 0; layer < 48; ++layer) {
    Unit& unit = units.emplace_back();
    for (size_t param = 0; param < 128 * 3; ++param) {
      unit.push_back(model.size());
      model.push_back({"layers." + std::to_string(layer) + ".experts." + std::to_string(param / 3) +
                           "." + std::to_string(param % 3) + ".weight",
                       501 + param % 3});
    }
  }
  const Counts known = counts_of(model, units, 8, 15);
  const FlatPlaces found = find_flat_places(model, known, {}, 22);
  BOOST_TEST(found.problem == "");
  BOOST_TEST((counts_in(found, 22) == counts_of(model, units, 8, 22)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ckpt
