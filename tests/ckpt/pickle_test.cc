#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ckpt/document.h>

#include "codec/pickle.h"
#include "codec/python_text.h"
#include "support/errors.h"
#include "support/memory_payloads.h"

namespace data = boost::unit_test::data;
using ckpt::Kind;
using ckpt::ValueTree;
using namespace std::string_literals;

namespace {

ValueTree read_tree(const std::string& bytes) {
  ckpt::ByteReader reader(test::bytes_of(bytes));
  return ckpt::pickle::read(reader);
}

// A value with everything in it: sharing, a cycle, an object with items and state.
ValueTree everything() {
  ValueTree tree;
  const auto shared = tree.list({tree.integer(1), tree.real(-0.5)});
  const auto root = tree.dict();
  tree.put(root, "shared", shared);
  tree.put(root, "again", shared);
  tree.put(root, "numbers",
           tree.tuple({tree.integer(0), tree.integer(255), tree.integer(256), tree.integer(65536),
                       tree.integer(-1), tree.integer(INT64_MIN), tree.boolean(true), tree.none(),
                       tree.big_integer("-340282366920938463463374607431768211456")}));
  tree.put(root, "text", tree.tuple({tree.str("\xc3\xa9\n"), tree.bytes("\x00\xff"s)}));
  const auto object = ckpt::add_ordered_dict(tree);
  tree.set_item(object, tree.str("a"), tree.integer(3));
  const auto state = tree.dict();
  tree.put(state, "self", object);
  tree.set_state(object, state);
  tree.put(root, "object", object);
  const auto members = {tree.integer(7)};
  tree.put(root, "set", tree.sequence(Kind::Set, members));
  tree.set_root(root);
  return tree;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pickle)

BOOST_DATA_TEST_CASE(what_was_read_is_written_to_the_same_bytes_again, data::make({2, 4}),
                     protocol) {
  const std::string once = ckpt::pickle::write(everything(), protocol);
  BOOST_TEST(ckpt::pickle::write(read_tree(once), protocol) == once);
}

BOOST_AUTO_TEST_CASE(sharing_and_cycles_survive) {
  const ValueTree tree = read_tree(ckpt::pickle::write(everything(), 4));
  const auto root = tree.root();
  BOOST_TEST(root.at("shared").id() == root.at("again").id());
  const auto object = root.at("object");
  BOOST_TEST(object.state()->at("self").id() == object.id());
}

BOOST_AUTO_TEST_CASE(texts_of_any_length_are_written_once_and_referred_to) {
  for (const size_t length : {255, 256, 4095, 4096, 4097, 100'000}) {
    const std::string text(length, 'a'), bytes(length, '\0');
    ValueTree tree;
    tree.set_root(tree.list({tree.str(text), tree.bytes(bytes), tree.str(text), tree.str(text)}));
    const std::string written = ckpt::pickle::write(tree, 4);
    BOOST_TEST(written.size() > 2 * length);
    BOOST_TEST(written.size() < 2 * length + 40);
    const ValueTree again = read_tree(written);
    BOOST_TEST(again.root()[1].text() == bytes);
    BOOST_TEST(again.root()[3].text() == text);
  }
}

BOOST_AUTO_TEST_CASE(numbers_survive) {
  const ValueTree tree = read_tree(ckpt::pickle::write(everything(), 2));
  const auto numbers = tree.root().at("numbers");
  BOOST_TEST(numbers[1].as_int() == 255);
  BOOST_TEST(numbers[4].as_int() == -1);
  BOOST_TEST(numbers[5].as_int() == INT64_MIN);
  BOOST_TEST(numbers[8].text() == "-340282366920938463463374607431768211456");
  BOOST_TEST(tree.root().at("shared")[1].as_float() == -0.5);
}

BOOST_AUTO_TEST_CASE(a_class_is_two_names_and_a_call_is_its_arguments) {
  const ValueTree tree = read_tree("cos\nsystem\nX\x04\0\0\0echo\x85R."s);
  const auto call = tree.root();
  BOOST_TEST(call.callable().is_global("os", "system"));
  BOOST_TEST(call.args()[0].text() == "echo");
}

BOOST_AUTO_TEST_CASE(text_opcodes_of_protocol_0_are_read) {
  const ValueTree tree =
      read_tree("(lp0\nI01\naI-12\naL123456789012345678901L\naF1.5\naS'a\\x41\\n'\nag0\na."s);
  const auto list = tree.root();
  BOOST_TEST(list[0].as_bool());
  BOOST_TEST(list[1].as_int() == -12);
  BOOST_TEST(list[2].text() == "123456789012345678901");
  BOOST_TEST(list[3].as_float() == 1.5);
  BOOST_TEST(list[4].text() == "aA\n");
  BOOST_TEST(list[5].id() == list.id());
}

BOOST_AUTO_TEST_CASE(a_tuple_that_contains_itself_cannot_be_written) {
  ValueTree tree;
  const auto list = tree.list();
  const auto tuple = tree.tuple({list});
  tree.append(list, tuple);
  tree.set_root(tuple);
  const auto error = test::error_of([&] { ckpt::pickle::write(tree, 2); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
}

BOOST_AUTO_TEST_CASE(a_line_break_in_a_class_name_cannot_be_written_in_protocol_2) {
  ValueTree tree;
  tree.set_root(tree.global("m", "a\nb"));
  BOOST_TEST(test::error_of([&] { ckpt::pickle::write(tree, 2); }).has_value());
  BOOST_TEST(!test::error_of([&] { ckpt::pickle::write(tree, 4); }).has_value());
}

const char* const kIntegers[] = {"0",
                                 "127",
                                 "128",
                                 "-128",
                                 "-129",
                                 "255",
                                 "256",
                                 "-32769",
                                 "999999999",
                                 "-1000000000000000000",
                                 "18446744073709551616",
                                 "170141183460469231731687303715884105727",
                                 "-170141183460469231731687303715884105728"};
BOOST_DATA_TEST_CASE(integers_of_any_size_go_to_bytes_and_back, data::make(kIntegers), text) {
  const std::string bytes = ckpt::pickle::little_endian_bytes(text);
  BOOST_TEST(ckpt::pickle::decimal_text(test::bytes_of(bytes)).value() == text);
}

// As Python's int.to_bytes has them.
BOOST_AUTO_TEST_CASE(integers_beyond_64_bits_have_pythons_bytes) {
  using ckpt::pickle::decimal_text, ckpt::pickle::little_endian_bytes;
  BOOST_TEST(little_endian_bytes("-18446744073709551616") == std::string(8, '\0') + '\xFF');
  BOOST_TEST(little_endian_bytes("18446744073709551615") == std::string(8, '\xFF') + '\0');
  BOOST_TEST(little_endian_bytes("-0000000000000000000") == std::string(1, '\0'));
  const std::string longer = std::string("\1\2\3", 3) + std::string(9, '\xFF');
  BOOST_TEST(decimal_text(test::bytes_of(longer)).value() == "-16580095");
  BOOST_TEST(decimal_text({}).value() == "0");
}

BOOST_AUTO_TEST_SUITE_END()
