#include "digest/canonical_encoding.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <ostream>

#include <ckpt/document.h>

#include "codec/hash_functions.h"

using ckpt::CanonicalEncoder;
using ckpt::Construction;
using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Sha256;
using ckpt::ValueTree;

namespace {

// Float32 0, 1, 2, 3, 4, 5.
Sha256 digest_of_six_floats() {
  ckpt::Sha256Stream stream;
  const float numbers[] = {0, 1, 2, 3, 4, 5};
  stream.update(std::as_bytes(std::span(numbers)));
  return stream.finish();
}

std::string digest(const ValueTree& tree, NodeId root) {
  CanonicalEncoder encoder(tree, [](NodeId) { return digest_of_six_floats(); });
  return hex(encoder.digest(root));
}

using Build = NodeId (*)(ValueTree&);

std::string digest_of(Build build) {
  ValueTree tree;
  const NodeId root = build(tree);
  return digest(tree, root);
}

NodeId pairs(ValueTree& tree, NodeId container,
             std::initializer_list<std::pair<const char*, int>> items) {
  for (const auto& [key, value] : items) {
    tree.set_item(container, tree.str(key), tree.integer(value));
  }
  return container;
}

NodeId two(ValueTree& tree, Kind kind, int first, int second) {
  const NodeId elements[] = {tree.integer(first), tree.integer(second)};
  return tree.sequence(kind, elements);
}

NodeId namespace_object(ValueTree& tree) {
  const NodeId object =
      tree.object(Construction::Reduce, tree.global("argparse", "Namespace"), tree.tuple());
  const NodeId state = tree.dict();
  tree.set_item(state, tree.str("lr"), tree.real(0.01));
  tree.set_state(object, state);
  return object;
}

NodeId object_with_everything(ValueTree& tree) {
  const NodeId kwargs = pairs(tree, tree.dict(), {{"x", 2}});
  const NodeId object = tree.object(Construction::NewObjEx, tree.global("m", "C"),
                                    tree.tuple({tree.integer(1)}), kwargs);
  tree.append(object, tree.integer(3));
  return object;
}

struct EncodingRow {
  const char* what;
  Build build;
  const char* sha256;
};
std::ostream& operator<<(std::ostream& out, const EncodingRow& row) { return out << row.what; }

// Made by a second program, written from docs/formats/canonical_encoding.md.
const EncodingRow kVectors[] = {
    {"None", [](ValueTree& t) { return t.none(); },
     "8ce86a6ae65d3692e7305e2c58ac62eebd97d3d943e093f577da25c36988246b"},
    {"True", [](ValueTree& t) { return t.boolean(true); },
     "e632b7095b0bf32c260fa4c539e9fd7b852d0de454e9be26f24d0d6f91d069d3"},
    {"1", [](ValueTree& t) { return t.integer(1); },
     "97510a78b1aa5ab9cff7a67dc05d32d7488ffd5c492bb877cb453e64f92bb036"},
    {"1.0", [](ValueTree& t) { return t.real(1.0); },
     "52fcd26b542357de2d2f831fa00864139288754bb97680d50b78593d656bc88c"},
    {"-3", [](ValueTree& t) { return t.integer(-3); },
     "a7a75a7bd10b30fe3ed69d61cb22f52c14a32014bead7b81b44b7281f2b01684"},
    {"2**70", [](ValueTree& t) { return t.big_integer("1180591620717411303424"); },
     "69eb0cb497a91294f825fd8a5b7d468367b19b494805467598c58194bc4af31c"},
    {"empty str", [](ValueTree& t) { return t.str(""); },
     "4e14be57bfa62caae977154a9154842726cc261aa226e50063720a30928b00a8"},
    {"e acute", [](ValueTree& t) { return t.str("\xC3\xA9"); },
     "c45a7bc8d386e8d78f7bd712726067ba2ad9f1997533ccf9120ed94a73707f7b"},
    {"b'ab'", [](ValueTree& t) { return t.bytes("ab"); },
     "43ce3f1588dd4fbeade967010f6a1aeb16f2503965c4a7fb171335bf57973009"},
    {"bytearray(b'ab')", [](ValueTree& t) { return t.bytes("ab", Kind::ByteArray); },
     "fb8e4b25b54873ee50a398e2fb3ae9687c1f997b2de266d1000540617c2df860"},
    {"torch.bfloat16", [](ValueTree& t) { return t.global("torch", "bfloat16"); },
     "e46671130f802722dff2635d6eb3c97123a7c2b7e0778b3e61e2137707c8a595"},
    {"[]", [](ValueTree& t) { return t.list(); },
     "5fc0aa918b5915ad03b2563ee2ca6dc3f0c9e232fde24650769257ba93faa037"},
    {"()", [](ValueTree& t) { return t.tuple(); },
     "3413a042582c8af6466494fb18cf48539a18c98eb9a25dda7076d47fd387e699"},
    {"{}", [](ValueTree& t) { return t.dict(); },
     "7a8d8ad1ddeaa4d5d66bd7902aef75f504c0942fc4bf0956a6c817823f0aaf74"},
    {"[1, [2]]",
     [](ValueTree& t) {
       return t.list({t.integer(1), t.list({t.integer(2)})});
     },
     "1a22289ec9b508b40aed4a2ad54174ba4704b012b944791bfb5479e415ce6b6e"},
    {"{'b': 1, 'a': 2}",
     [](ValueTree& t) {
       return pairs(t, t.dict(), {{"b", 1}, {"a", 2}});
     },
     "934a506a6a176ca969d60e74c37fa80bfe96b96ee60e01839b9d17ffd5cc711c"},
    {"{2, 1}", [](ValueTree& t) { return two(t, Kind::Set, 2, 1); },
     "67f935ba4be18f9593a499bfca31cbde3996bfebec99b6223ac765473d80095a"},
    {"frozenset({2, 1})", [](ValueTree& t) { return two(t, Kind::FrozenSet, 2, 1); },
     "51fd82925fc97250117ac19e52b0010e7b16f703041b30f2efbf464d429f478d"},
    {"OrderedDict(a=1, b=2)",
     [](ValueTree& t) {
       return pairs(t, ckpt::add_ordered_dict(t), {{"a", 1}, {"b", 2}});
     },
     "ce4b7676103031fc10c605bb69ab9992e72b1635063ebe5ed180c2486fd45eb7"},
    {"OrderedDict(b=2, a=1)",
     [](ValueTree& t) {
       return pairs(t, ckpt::add_ordered_dict(t), {{"b", 2}, {"a", 1}});
     },
     "887fa5bf05efc9524b2d4e3ed0fa9f97f28fd04eb5ddca97662e79a1c841ec0c"},
    {"Namespace(lr=0.01)", namespace_object,
     "7a4369dd8f32e35f3994337bc3a0e158f4f74414f7d43d957f807b3fa27d1a65"},
    {"a tensor",
     [](ValueTree& t) {
       return ckpt::add_tensor(t, ckpt::DType::Float32, {2, 3}, "0");
     },
     "948908d1b136630540847bb99cd9d5e2fbe5ebcc5d569c4138dc6c5332689bf9"},
    {"keyword arguments and elements", object_with_everything,
     "8a400bbabfced5eedc32f6e74dc3d3ed4375e52a0cae77b2758a2ea5b36cb851"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(canonical_encoding)

BOOST_DATA_TEST_CASE(follows_its_specification, kVectors) {
  BOOST_TEST(digest_of(sample.build) == sample.sha256);
}

BOOST_AUTO_TEST_CASE(the_order_of_a_dict_means_nothing) {
  const auto forward = [](ValueTree& t) { return pairs(t, t.dict(), {{"a", 1}, {"b", 2}}); };
  const auto backward = [](ValueTree& t) { return pairs(t, t.dict(), {{"b", 2}, {"a", 1}}); };
  BOOST_TEST(digest_of(forward) == digest_of(backward));
}

BOOST_AUTO_TEST_CASE(sharing_a_value_means_nothing) {
  const auto shared = [](ValueTree& t) {
    const NodeId inner = t.list({t.integer(1)});
    return t.list({inner, inner});
  };
  const auto copied = [](ValueTree& t) {
    return t.list({t.list({t.integer(1)}), t.list({t.integer(1)})});
  };
  BOOST_TEST(digest_of(shared) == digest_of(copied));
}

BOOST_AUTO_TEST_CASE(bits_of_floats_count) {
  const auto zero = [](ValueTree& t) { return t.real(0.0); };
  const auto minus_zero = [](ValueTree& t) { return t.real(-0.0); };
  BOOST_TEST(digest_of(zero) != digest_of(minus_zero));
}

// 64 lists, each of which holds the next one twice: 2^64 paths.
BOOST_AUTO_TEST_CASE(a_value_is_encoded_once_however_often_it_is_shared) {
  ValueTree tree;
  NodeId value = tree.list();
  for (int i = 0; i < 64; ++i) value = tree.list({value, value});
  BOOST_TEST(digest(tree, value).size() == 64u);
}

BOOST_AUTO_TEST_CASE(depth_is_not_bounded_by_the_stack) {
  ValueTree tree;
  NodeId value = tree.list();
  for (int i = 0; i < 1'000'000; ++i) value = tree.list({value});
  BOOST_TEST(digest(tree, value).size() == 64u);
}

BOOST_AUTO_TEST_CASE(a_list_that_contains_itself_has_a_digest) {
  const auto itself = [](ValueTree& t) {
    const NodeId list = t.list();
    t.append(list, list);
    return list;
  };
  const auto in_a_list = [](ValueTree& t) {
    const NodeId list = t.list();
    t.append(list, t.list({list}));
    return list;
  };
  BOOST_TEST(digest_of(itself) == digest_of(itself));
  BOOST_TEST(digest_of(itself) != digest_of(in_a_list));
}

BOOST_AUTO_TEST_CASE(a_digest_does_not_depend_on_what_was_digested_before) {
  ValueTree tree;
  const NodeId first = tree.list(), second = tree.list({first});
  tree.append(first, second);
  CanonicalEncoder encoder(tree, [](NodeId) { return Sha256(); });
  encoder.digest(first);
  BOOST_TEST(hex(encoder.digest(second)) == digest(tree, second));
}

BOOST_AUTO_TEST_CASE(the_content_of_a_tensor_counts) {
  ValueTree tree;
  const NodeId tensor = ckpt::add_tensor(tree, ckpt::DType::Float32, {2, 3}, "0");
  CanonicalEncoder other(tree, [](NodeId) { return Sha256(); });
  BOOST_TEST(hex(other.digest(tensor)) != digest(tree, tensor));
}

BOOST_AUTO_TEST_CASE(payloads_are_found_once_each) {
  ValueTree tree;
  const NodeId tensor = ckpt::add_tensor(tree, ckpt::DType::Float32, {2, 3}, "0");
  const NodeId root = tree.list({tensor, tree.list({tensor}), tree.integer(1)});
  ckpt::PayloadSearch search(tree);
  BOOST_TEST((search.unseen_below(root) == std::vector<NodeId>{tensor}));
  BOOST_TEST(search.unseen_below(root).empty());
}

BOOST_AUTO_TEST_SUITE_END()
