#include <ckpt/diff.h>

#include <bit>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <ostream>

#include "support/errors.h"
#include "support/random_tensors.h"

using ckpt::DifferenceKind;
using ckpt::Differences;
using ckpt::DiffOptions;
using ckpt::DType;
using ckpt::Inventory;
using ckpt::NodeId;
using ckpt::TensorEntry;
using ckpt::ValueTree;
using test::MemoryPayloads;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::string bytes_of_floats(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

struct Side {
  MemoryPayloads payloads;
  Inventory inventory;

  void add(const std::string& key, DType dtype, const ckpt::Extents& shape,
           const std::string& content) {
    inventory.tensors.push_back(
        {"", key, dtype, shape, {{ckpt::whole(shape), payloads.add_storage(content)}}});
  }
  void add_floats(const std::string& key, const std::vector<float>& numbers) {
    add(key, DType::Float32, {numbers.size()}, bytes_of_floats(numbers));
  }
  template <class Build>
  void add_object(const std::string& key, Build build) {
    auto document = std::make_shared<ckpt::Document>();
    document->tree.set_root(build(document->tree));
    const NodeId root = document->tree.root().id();
    inventory.objects.push_back({"", key, std::move(document), root, true});
  }
};

Differences compare(const Side& a, const Side& b, const DiffOptions& options = {}) {
  return diff({a.inventory, a.payloads}, {b.inventory, b.payloads}, options);
}

// The only difference between two float32 tensors, if there is one.
std::optional<ckpt::ValueDifference> compare_floats(const std::vector<float>& a,
                                                    const std::vector<float>& b,
                                                    const DiffOptions& options = {}) {
  Side a_side, b_side;
  a_side.add_floats("w", a);
  b_side.add_floats("w", b);
  const Differences differences = compare(a_side, b_side, options);
  if (differences.none()) return std::nullopt;
  return differences.tensors.at(0).value;
}

NodeId adam(ValueTree& tree, double lr, const char* name) {
  const NodeId group = tree.dict();
  tree.put(group, "lr", tree.real(lr));
  tree.put(group, "name", tree.str(name));
  return tree.list({group, tree.tuple({tree.real(0.9), tree.real(0.95)})});
}

NodeId arguments(ValueTree& tree, std::initializer_list<std::pair<const char*, int>> fields) {
  const NodeId state = tree.dict();
  for (const auto& [key, value] : fields) tree.put(state, key, tree.integer(value));
  const NodeId object =
      tree.object(ckpt::Construction::Reduce, tree.global("argparse", "Namespace"), tree.tuple());
  tree.set_state(object, state);
  return object;
}

template <class Build>
ckpt::ObjectDifference only_object_difference(Build a, Build b, size_t details_max = 100) {
  static Side a_side, b_side;  // the result points into them
  a_side.inventory = b_side.inventory = {};
  a_side.add_object("o", a);
  b_side.add_object("o", b);
  DiffOptions options;
  options.details_max = details_max;
  const Differences differences = compare(a_side, b_side, options);
  BOOST_REQUIRE(differences.objects.size() == 1u);
  return differences.objects[0];
}

}  // namespace

BOOST_AUTO_TEST_SUITE(diff_test)

BOOST_AUTO_TEST_CASE(a_tensor_equals_itself_however_it_is_chunked) {
  test::Random random(5);
  for (int round = 0; round < 200; ++round) {
    Side a, b;
    const auto tensor = test::random_tensor(random, a.payloads);
    a.inventory.tensors.push_back(tensor.entry);
    b.add(tensor.entry.key, tensor.entry.dtype, tensor.entry.shape, tensor.content);
    BOOST_TEST(compare(a, b).none());
  }
}

BOOST_AUTO_TEST_CASE(names_types_and_shapes_are_compared_before_values) {
  Side a, b;
  a.add("only_a", DType::UInt8, {1}, "x");
  a.add("shape", DType::UInt8, {2, 3}, "abcdef");
  a.add("type", DType::UInt8, {1}, "x");
  b.add("shape", DType::UInt8, {3, 2}, "abcdef");
  b.add("type", DType::Int8, {1}, "x");
  b.add("z_only_b", DType::UInt8, {1}, "x");
  const Differences differences = compare(a, b);
  BOOST_TEST(differences.tensor_count == 4u);
  BOOST_REQUIRE(differences.tensors.size() == 4u);
  BOOST_TEST((differences.tensors[0].kind == DifferenceKind::OnlyInA));
  BOOST_TEST((differences.tensors[1].kind == DifferenceKind::Shape));
  BOOST_TEST((differences.tensors[2].kind == DifferenceKind::DType));
  BOOST_TEST((differences.tensors[3].kind == DifferenceKind::OnlyInB));
  BOOST_TEST(differences.tensors[0].b == nullptr);
}

BOOST_AUTO_TEST_CASE(a_difference_is_measured_and_placed) {
  Side a, b;
  const float next = std::nextafter(2.0f, 3.0f);
  a.add("w", DType::Float32, {2, 3}, bytes_of_floats({1, 1, 1, 1, 2.5f, next}));
  b.add("w", DType::Float32, {2, 3}, bytes_of_floats({1, 1, 1, 1, 2, 2}));
  const auto value = compare(a, b).tensors.at(0).value;
  BOOST_REQUIRE(value.has_value());
  BOOST_TEST(value->element_count == 6u);
  BOOST_TEST(value->different_count == 2u);
  BOOST_TEST(value->max_abs == 0.5);
  BOOST_TEST(value->max_rel == 0.25);
  BOOST_TEST(*value->max_ulp_distance == 0x200000);  // a quarter of the 2^23 steps from 2 to 4
  BOOST_TEST((value->first_index == ckpt::Extents{1, 1}));
  BOOST_TEST(value->first_a == "2.5");
  BOOST_TEST(value->first_b == "2");
}

BOOST_AUTO_TEST_CASE(the_norm_of_a_difference_is_told_in_units_of_the_first_norm) {
  const auto found = compare_floats({3, 4, kNan, 0}, {3, 1, kNan, 4});
  BOOST_TEST(found->norm == 5);
  BOOST_TEST(found->norm_a == 5);
  BOOST_TEST(found->relative_norm() == 1);
  BOOST_TEST(std::isinf(compare_floats({0, 0}, {0, 2})->relative_norm()));
  BOOST_TEST(compare_floats({1, kInf}, {2, 0})->norm == 1);  // what is not finite does not count
}

BOOST_AUTO_TEST_CASE(a_wider_type_is_rounded_before_values_are_compared) {
  Side a, b;
  const float rounds_up = 1.005f;  // bfloat16: 1.0078125, 0x3F81
  a.add("equal", DType::Float32, {2}, bytes_of_floats({rounds_up, 2}));
  b.add("equal", DType::BFloat16, {2}, std::string("\x81\x3F\x00\x40", 4));
  a.add("other", DType::BFloat16, {1}, std::string("\x00\x40", 2));
  b.add("other", DType::Float32, {1}, bytes_of_floats({4}));
  const Differences differences = compare(a, b);
  BOOST_REQUIRE(differences.tensors.size() == 2u);
  for (const ckpt::TensorDifference& each : differences.tensors) {
    BOOST_TEST((each.kind == DifferenceKind::DType));
    BOOST_TEST(each.is_rounded);
  }
  BOOST_TEST(!differences.tensors[0].value);
  BOOST_TEST(differences.tensors[1].value->max_abs == 2);
  BOOST_TEST(differences.tensors[1].value->first_b == "4");
  DiffOptions names;
  names.keys_only = true;
  BOOST_TEST(!compare(a, b, names).tensors[0].is_rounded);
}

BOOST_AUTO_TEST_CASE(values_of_whole_numbers_and_floats_are_not_compared) {
  Side a, b;
  a.add_floats("w", {0.5f, 1e9f});
  b.add("w", DType::Int16, {2}, std::string(4, '\1'));
  const Differences differences = compare(a, b);
  BOOST_REQUIRE(differences.tensors.size() == 1u);
  BOOST_TEST((differences.tensors[0].kind == DifferenceKind::DType));
  BOOST_TEST(!differences.tensors[0].is_rounded);
  BOOST_TEST(!differences.tensors[0].value);
}

// The first piece of a tensor that is equal counts, too, and nothing depends on how it is cut.
BOOST_AUTO_TEST_CASE(the_norms_of_a_long_tensor_do_not_depend_on_memory) {
  std::vector<float> a(1 << 20), b;
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(1 + i % 1000);
  b = a;
  b.back() += 1;
  b[a.size() / 2 + 7] -= 3;
  double squares = 0;
  for (const float each : a) squares += double{each} * each;
  std::optional<ckpt::ValueDifference> first;
  for (const uint64_t memory_bytes : {uint64_t{1} << 18, uint64_t{1} << 21, uint64_t{1} << 28}) {
    DiffOptions options;
    options.execution.memory_bytes_max = memory_bytes;
    const auto found = compare_floats(a, b, options);
    BOOST_TEST(found->norm == std::sqrt(10.0), boost::test_tools::tolerance(1e-12));
    BOOST_TEST(found->norm_a == std::sqrt(squares), boost::test_tools::tolerance(1e-12));
    if (!first) first = found;
    BOOST_TEST(found->norm == first->norm);
    BOOST_TEST(found->norm_a == first->norm_a);
  }
}

BOOST_AUTO_TEST_CASE(one_step_is_one_ulp_also_across_zero) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  BOOST_TEST(*compare_floats({std::nextafter(1.0f, 2.0f)}, {1})->max_ulp_distance == 1);
  BOOST_TEST(*compare_floats({smallest}, {-smallest})->max_ulp_distance == 2);
}

BOOST_AUTO_TEST_CASE(without_tolerance_bits_decide) {
  BOOST_TEST(!compare_floats({kNan, kInf, -kInf}, {kNan, kInf, -kInf}));
  const auto zeros = compare_floats({0.0f}, {-0.0f});
  BOOST_REQUIRE(zeros.has_value());
  BOOST_TEST(zeros->max_abs == 0);
  BOOST_TEST(*zeros->max_ulp_distance == 0);
  BOOST_TEST(zeros->first_b == "-0");
  const float other_nan = std::bit_cast<float>(std::bit_cast<uint32_t>(kNan) ^ 1);
  BOOST_TEST(compare_floats({other_nan}, {kNan}).has_value());
}

BOOST_AUTO_TEST_CASE(tolerances_are_those_of_allclose) {
  DiffOptions absolute, relative;
  absolute.atol = 0.25;
  relative.rtol = 0.125;
  BOOST_TEST(!compare_floats({1.25f}, {1}, absolute));
  BOOST_TEST(compare_floats({1.5f}, {1}, absolute).has_value());
  BOOST_TEST(!compare_floats({2.25f}, {2}, relative));
  BOOST_TEST(compare_floats({2.5f}, {2}, relative).has_value());
  BOOST_TEST(!compare_floats({0.0f}, {-0.0f}, absolute));
}

BOOST_AUTO_TEST_CASE(no_tolerance_covers_nan_and_infinity) {
  DiffOptions generous;
  generous.atol = generous.rtol = 1e30;
  for (const float odd : {kNan, kInf}) {
    const auto value = compare_floats({odd}, {1}, generous);
    BOOST_REQUIRE(value.has_value());
    BOOST_TEST(value->max_abs == 0);
    BOOST_TEST(!value->max_ulp_distance.has_value());
  }
  BOOST_TEST(compare_floats({kInf}, {-kInf}, generous).has_value());
}

BOOST_AUTO_TEST_CASE(integers_are_compared_exactly) {
  Side a, b;
  const int64_t a_number = INT64_MAX, b_number = INT64_MAX - 1;
  const auto bytes = [](const int64_t& n) {
    return std::string(reinterpret_cast<const char*>(&n), 8);
  };
  a.add("w", DType::Int64, {1}, bytes(a_number));
  b.add("w", DType::Int64, {1}, bytes(b_number));
  const auto value = compare(a, b).tensors.at(0).value;
  BOOST_TEST(value->max_abs == 1);
  BOOST_TEST(!value->max_ulp_distance.has_value());
  BOOST_TEST(value->first_a == "9223372036854775807");
}

BOOST_AUTO_TEST_CASE(a_complex_element_differs_once) {
  Side a, b;
  a.add("w", DType::Complex64, {2}, bytes_of_floats({1, 2, 3, 4}));
  b.add("w", DType::Complex64, {2}, bytes_of_floats({1, 2, 5, -4}));
  const auto value = compare(a, b).tensors.at(0).value;
  BOOST_TEST(value->different_count == 1u);
  BOOST_TEST(value->max_abs == 8);
  BOOST_TEST(value->first_a == "(3+4j)");
  BOOST_TEST(value->first_b == "(5-4j)");
}

BOOST_AUTO_TEST_CASE(slabs_and_threads_change_nothing) {
  std::vector<float> a(5000, 1.0f), b = a;
  b[4321] = 2;
  DiffOptions options;
  options.execution.memory_bytes_max = 1;
  for (const unsigned threads : {1u, 3u}) {
    options.execution.threads = threads;
    const auto value = compare_floats(a, b, options);
    BOOST_REQUIRE(value.has_value());
    BOOST_TEST((value->first_index == ckpt::Extents{4321}));
    BOOST_TEST(value->different_count == 1u);
  }
}

BOOST_AUTO_TEST_CASE(keys_only_reads_nothing) {
  Side a, b;
  a.add_floats("w", {1});
  b.add_floats("w", {2});
  DiffOptions options;
  options.keys_only = true;
  BOOST_TEST(compare(a, b, options).none());
  BOOST_TEST(a.payloads.reads() + b.payloads.reads() == 0u);
}

BOOST_AUTO_TEST_CASE(entries_that_are_listed_twice_are_matched_in_order) {
  Side a, b;
  a.add("w", DType::UInt8, {1}, "x");
  a.add("w", DType::UInt8, {1}, "y");
  b.add("w", DType::UInt8, {1}, "x");
  const Differences differences = compare(a, b);
  BOOST_REQUIRE(differences.tensors.size() == 1u);
  BOOST_TEST((differences.tensors[0].kind == DifferenceKind::OnlyInA));
}

BOOST_AUTO_TEST_CASE(an_object_says_where_it_differs) {
  const auto found = only_object_difference<NodeId (*)(ValueTree&)>(
      [](ValueTree& tree) { return adam(tree, 0.01, "adam"); },
      [](ValueTree& tree) { return adam(tree, 0.02, "adam"); });
  BOOST_TEST(found.place_count == 1u);
  BOOST_TEST(found.details.at(0).pointer == "/0/lr");
  BOOST_TEST(found.details[0].a->as_float() == 0.01);
  BOOST_TEST(found.details[0].b->as_float() == 0.02);
}

BOOST_AUTO_TEST_CASE(attributes_that_one_side_lacks_are_named) {
  const auto found = only_object_difference<NodeId (*)(ValueTree&)>(
      [](ValueTree& tree) {
        return arguments(tree, {{"lr", 1}, {"old", 2}});
      },
      [](ValueTree& tree) {
        return arguments(tree, {{"new", 3}, {"lr", 1}});
      });
  BOOST_TEST(found.place_count == 2u);
  BOOST_TEST(found.details.at(0).pointer == "/@old");
  BOOST_TEST(!found.details[0].b.has_value());
  BOOST_TEST(found.details.at(1).pointer == "/@new");
  BOOST_TEST(!found.details[1].a.has_value());
}

BOOST_AUTO_TEST_CASE(an_ordered_dict_in_another_order_differs_as_a_whole) {
  const auto ordered = [](ValueTree& tree, const char* first, const char* second) {
    const NodeId dict = ckpt::add_ordered_dict(tree);
    tree.set_item(dict, tree.str(first), tree.none());
    tree.set_item(dict, tree.str(second), tree.none());
    return dict;
  };
  Side a, b;
  a.add_object("o", [&](ValueTree& tree) { return ordered(tree, "x", "y"); });
  b.add_object("o", [&](ValueTree& tree) { return ordered(tree, "y", "x"); });
  const Differences differences = compare(a, b);
  BOOST_TEST(differences.objects.at(0).details.at(0).pointer == "");
}

BOOST_AUTO_TEST_CASE(changes_within_the_tolerance_are_told_and_those_outside_counted) {
  DiffOptions options;
  options.atol = 0.5;
  options.changes = true;
  const auto found = compare_floats({1, 2, 3, kNan}, {1, 2.25f, 4, 1}, options);
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(found->different_count == 3u);
  BOOST_TEST(found->outside_count == 2u);  // 3 and NaN
  BOOST_TEST(found->max_abs == 1);
  BOOST_REQUIRE(found->products.has_value());
  BOOST_TEST(found->products->a_b == 1 + 4.5 + 12);
  BOOST_TEST(found->products->a_a == 14);
  BOOST_TEST(found->products->b_b == 1 + 2.25 * 2.25 + 16);
}

BOOST_AUTO_TEST_CASE(details_are_bounded_and_counted) {
  const auto found = only_object_difference<NodeId (*)(ValueTree&)>(
      [](ValueTree& tree) { return adam(tree, 0.01, "adam"); },
      [](ValueTree& tree) { return adam(tree, 0.02, "muon"); }, 1);
  BOOST_TEST(found.place_count == 2u);
  BOOST_TEST(found.details.size() == 1u);
}

BOOST_AUTO_TEST_CASE(an_object_of_one_side_only_is_named) {
  Side a, b;
  a.add_object("o", [](ValueTree& tree) { return tree.integer(1); });
  const Differences differences = compare(a, b);
  BOOST_REQUIRE(differences.objects.size() == 1u);
  BOOST_TEST((differences.objects[0].kind == DifferenceKind::OnlyInA));
}

// Two lists of 64 levels, each of which holds the next one twice, with different leaves.
BOOST_AUTO_TEST_CASE(shared_values_are_compared_once) {
  const auto doubled = [](ValueTree& tree, int64_t leaf) {
    NodeId value = tree.integer(leaf);
    for (int i = 0; i < 64; ++i) value = tree.list({value, value});
    return value;
  };
  Side a, b;
  a.add_object("o", [&](ValueTree& tree) { return doubled(tree, 1); });
  b.add_object("o", [&](ValueTree& tree) { return doubled(tree, 2); });
  BOOST_TEST(compare(a, b).objects.at(0).place_count >= 1u);
}

BOOST_AUTO_TEST_CASE(an_error_names_the_tensor_and_its_file) {
  Side a, b;
  a.add_floats("w", {1});
  b.add_floats("w", {1});
  b.inventory.tensors[0].chunks[0].region.bytes.count_bytes = 2;
  const auto error = test::error_of([&] { compare(a, b); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST(error->where().key == "w");
}

BOOST_AUTO_TEST_SUITE_END()
