// Keys as a tree, and rows in their orders.
#include <training/key_tree.h>

#include <boost/test/unit_test.hpp>

#include <ckpt/error.h>

namespace {

using optim::RowOrder;

ckpt::Catalog catalog_of(const std::vector<std::string>& keys) {
  ckpt::Catalog catalog;
  uint64_t size = 0;
  for (const std::string& key : keys) {
    catalog.tensors.push_back({});
    catalog.tensors.back().key = key;
    catalog.tensors.back().dtype = ckpt::DType::Float32;
    catalog.tensors.back().shape = {++size};
  }
  return catalog;
}

std::string text_of(const optim::KeyBranch& branch) {
  if (branch.children.empty()) return branch.name;
  std::string text = branch.name + "(";
  for (const auto& child : branch.children) {
    text += (text.back() == '(' ? "" : " ") + text_of(*child);
  }
  return text + ")";
}

std::string tree_of(const std::vector<std::string>& keys) {
  const ckpt::Catalog catalog = catalog_of(keys);
  const auto rows = optim::list_rows(catalog);
  return text_of(optim::make_key_tree(rows));
}

std::string keys_of(const std::vector<optim::CatalogRow>& rows) {
  std::string text;
  for (const auto& row : rows) text += (text.empty() ? "" : " ") + row.key();
  return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(key_tree)

BOOST_AUTO_TEST_CASE(by_size_the_largest_branch_comes_first_at_every_step) {
  const ckpt::Catalog catalog = catalog_of({"a.x", "a.y", "b.x", "c.p", "c.q"});  // 1 to 5 floats
  const auto rows = optim::list_rows(catalog);
  optim::KeyBranch root = optim::make_key_tree(rows);
  optim::sort_by_size(root);
  BOOST_TEST(text_of(root) == "(c(q p) a(y x) b(x))");
}

BOOST_AUTO_TEST_CASE(dots_and_slashes_of_pointers_nest) {
  BOOST_TEST(tree_of({"a.b.w", "a.b.v", "c"}) == "(a(b(w v)) c)");
  BOOST_TEST(tree_of({"/model/a~1b", "/model/c.d~0"}) == "(model(a/b c.d~))");
  BOOST_TEST(tree_of({""}) == "((root))");
}

BOOST_AUTO_TEST_CASE(numbers_follow_each_other_and_others_keep_their_places) {
  BOOST_TEST(tree_of({"l.0.w", "l.10.w", "l.norm.w", "l.2.w"}) == "(l(0(w) 2(w) norm(w) 10(w)))");
}

BOOST_AUTO_TEST_CASE(a_part_of_a_sharded_object_is_one_step) {
  BOOST_TEST(tree_of({"rng_state/shard_0.0_1.1"}) == "(rng_state/shard_0.0_1.1)");
}

BOOST_AUTO_TEST_CASE(keys_that_are_too_deep_keep_the_rest_in_one_piece) {
  std::string key;
  for (int i = 0; i < 100; ++i) key += (i == 0 ? "s" : ".s");
  const ckpt::Catalog catalog = catalog_of({key});
  const auto rows = optim::list_rows(catalog);
  const optim::KeyBranch root = optim::make_key_tree(rows);
  size_t depth = 0;
  const optim::KeyBranch* branch = &root;
  for (; !branch->children.empty(); ++depth) branch = branch->children[0].get();
  BOOST_TEST(depth == optim::kKeyDepthMax);
  BOOST_TEST(branch->name.size() == 2 * (100 - optim::kKeyDepthMax) + 1);
}

BOOST_AUTO_TEST_CASE(a_branch_counts_all_that_lies_below_it) {
  ckpt::Catalog catalog = catalog_of({"a.x", "a.y", "b"});
  catalog.objects.push_back({});
  catalog.objects.back().key = "a.o";
  const auto rows = optim::list_rows(catalog);
  const optim::KeyBranch root = optim::make_key_tree(rows);
  BOOST_TEST(root.tensor_count == 3u);
  BOOST_TEST(root.count_bytes == 4u * (1 + 2 + 3));
  BOOST_TEST(root.children[0]->tensor_count == 2u);
  BOOST_TEST(root.children[0]->object_count == 1u);
  BOOST_TEST(root.children[0]->count_bytes == 4u * (1 + 2));
  BOOST_TEST((root.children[1]->row == &rows[2]));
}

BOOST_AUTO_TEST_CASE(rows_are_sorted_by_key_or_the_largest_first) {
  const ckpt::Catalog catalog = catalog_of({"c", "a", "b"});
  auto rows = optim::list_rows(catalog);
  optim::sort_rows(rows, RowOrder::Stored);
  BOOST_TEST(keys_of(rows) == "c a b");
  optim::sort_rows(rows, RowOrder::Size);
  BOOST_TEST(keys_of(rows) == "b a c");
  optim::sort_rows(rows, RowOrder::Key);
  BOOST_TEST(keys_of(rows) == "a b c");
}

BOOST_AUTO_TEST_CASE(patterns_that_match_nothing_are_told_with_the_nearest_key) {
  const ckpt::Catalog catalog = catalog_of({"decoder.weight", "decoder.bias"});
  const auto unmatched = optim::unmatched_patterns(catalog, {{"decoder.weigth", "*bias"}, {}});
  BOOST_REQUIRE(unmatched.size() == 1u);
  BOOST_TEST(unmatched[0].typed == "decoder.weigth");
  BOOST_TEST(unmatched[0].nearest.value_or("") == "decoder.weight");
  BOOST_TEST(keys_of(optim::list_rows(catalog, {{"*bias"}, {}})) == "decoder.bias");
}

BOOST_AUTO_TEST_CASE(selected_entries_stay_in_the_inventories) {
  ckpt::Inventory a, b;
  a.tensors = catalog_of({"x", "y"}).tensors;
  b.tensors = catalog_of({"y", "z"}).tensors;
  ckpt::Inventory* const both[] = {&a, &b};
  const auto selected = optim::select_entries(both, {{"x", "n*"}, {}});
  BOOST_TEST(selected.is_any);
  BOOST_REQUIRE(selected.unmatched.size() == 1u);
  BOOST_TEST(selected.unmatched[0].typed == "n*");
  BOOST_TEST(a.tensors.size() == 1u);
  BOOST_TEST(b.tensors.empty());
  BOOST_CHECK_THROW(optim::select_entries(both, {{"z"}, {}}), ckpt::Error);
}

BOOST_AUTO_TEST_SUITE_END()
