#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ckpt/checkpoint.h>
#include <ckpt/document.h>

#include "support/errors.h"
#include "support/golden.h"

namespace data = boost::unit_test::data;
using ckpt::DType;
using ckpt::NodeId;
using ckpt::ValueTree;

namespace {

// torch._utils._rebuild_tensor_v2(FloatStorage of 12 elements, offset, size, stride, ...).
NodeId view(ValueTree& tree, int64_t offset, std::vector<int64_t> size,
            std::vector<int64_t> stride) {
  const auto numbers = [&](const std::vector<int64_t>& values) {
    std::vector<NodeId> ids;
    for (const int64_t value : values) ids.push_back(tree.integer(value));
    return tree.sequence(ckpt::Kind::Tuple, ids);
  };
  const NodeId storage =
      tree.persistent_id(tree.tuple({tree.str("storage"), tree.global("torch", "FloatStorage"),
                                     tree.str("0"), tree.str("cpu"), tree.integer(12)}));
  return tree.object(ckpt::Construction::Reduce, tree.global("torch._utils", "_rebuild_tensor_v2"),
                     tree.tuple({storage, tree.integer(offset), numbers(size), numbers(stride),
                                 tree.boolean(false), ckpt::add_ordered_dict(tree)}));
}

struct BadView {
  const char* name;
  int64_t offset;
  std::vector<int64_t> size, stride;
  friend std::ostream& operator<<(std::ostream& out, const BadView& v) { return out << v.name; }
};
const BadView kBadViews[] = {
    {"offset behind the storage", 12, {1}, {1}},
    {"size behind the storage", 0, {13}, {1}},
    {"stride out of the storage", 0, {2, 2}, {12, 1}},
    {"negative offset", -1, {1}, {1}},
    {"negative size", 0, {-1}, {1}},
    {"strides and sizes differ in number", 0, {2, 2}, {1}},
    {"product beyond 64 bits", 0, {INT64_MAX, INT64_MAX}, {INT64_MAX, 1}},
    {"65 dimensions", 0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(document)

BOOST_AUTO_TEST_CASE(a_view_states_its_storage_offset_shape_and_strides) {
  ValueTree tree;
  tree.set_root(view(tree, 2, {3, 2}, {1, 3}));
  const auto tensor = ckpt::as_tensor(tree.root());
  BOOST_REQUIRE(tensor);
  BOOST_TEST(tensor->storage_key == "0");
  BOOST_TEST((tensor->dtype == DType::Float32));
  BOOST_TEST(tensor->storage_count_bytes == 48u);
  BOOST_TEST(tensor->offset == 2u);
  BOOST_TEST(tensor->shape == (ckpt::Extents{3, 2}), boost::test_tools::per_element());
  BOOST_TEST(tensor->strides == (ckpt::Extents{1, 3}), boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(a_view_that_leaves_its_storage_is_refused, data::make(kBadViews), bad) {
  ValueTree tree;
  tree.set_root(view(tree, bad.offset, bad.size, bad.stride));
  const auto error = test::error_of([&] { ckpt::as_tensor(tree.root()); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_CASE(what_is_added_is_recognised) {
  for (const DType dtype : {DType::BFloat16, DType::Float8E4M3FN, DType::UInt16, DType::Bool}) {
    ValueTree tree;
    tree.set_root(ckpt::add_tensor(tree, dtype, {2, 3}, "7"));
    const auto tensor = ckpt::as_tensor(tree.root());
    BOOST_REQUIRE(tensor);
    BOOST_TEST((tensor->dtype == dtype));
    BOOST_TEST(tensor->storage_count_bytes == 6 * ckpt::bytes_per_element(dtype));
  }
}

BOOST_AUTO_TEST_CASE(sparse_and_quantised_tensors_are_refused_by_name) {
  ValueTree tree;
  tree.set_root(tree.object(ckpt::Construction::Reduce,
                            tree.global("torch._utils", "_rebuild_sparse_tensor"), tree.tuple()));
  const auto error = test::error_of([&] { ckpt::as_tensor(tree.root()); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
  BOOST_TEST(test::contains(error->problem(), "_rebuild_sparse_tensor"));
}

BOOST_AUTO_TEST_CASE(keys_are_shown_as_python_shows_them) {
  ValueTree tree;
  const auto text = [&](NodeId id) { return ckpt::key_text(tree.value(id)); };
  BOOST_TEST(text(tree.integer(3)) == "3");
  BOOST_TEST(text(tree.real(1)) == "1.0");
  BOOST_TEST(text(tree.real(1e-8)) == "1e-08");
  BOOST_TEST(text(tree.boolean(true)) == "True");
  BOOST_TEST(
      text(tree.tuple({tree.global("torch", "bfloat16"), tree.global("torch", "float32")})) ==
      "(torch.bfloat16, torch.float32)");
  BOOST_TEST(text(tree.tuple({tree.str("a")})) == "('a',)");
}

BOOST_AUTO_TEST_CASE(a_tree_that_multiplies_by_sharing_ends_in_an_error) {
  ckpt::Document document;
  NodeId node = document.tree.list();
  for (int i = 0; i < 64; ++i) node = document.tree.list({node, node});
  document.tree.set_root(node);
  const auto error = test::error_of([&] { ckpt::tensors_in(document); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
}

BOOST_AUTO_TEST_CASE(every_tensor_of_a_real_file_is_found_with_its_pointer) {
  const auto checkpoint = ckpt::Checkpoint::open(test::golden("torch_save_zip/zip.pt"));
  const auto& catalog = checkpoint.catalog();
  BOOST_TEST(catalog.tensors.size() == 50u);
  BOOST_TEST(catalog.find_tensor("/optimizer/state/0/exp_avg") != nullptr);
  BOOST_TEST(catalog.find_tensor("/user/@b/2/t") != nullptr);
  BOOST_TEST(catalog.find_tensor("/model/view.T")->chunks[0].view != nullptr);
}

BOOST_AUTO_TEST_SUITE_END()
