#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "codec/pickle.h"
#include "support/errors.h"
#include "support/memory_payloads.h"

namespace data = boost::unit_test::data;
using ckpt::ErrorCode;
using namespace std::string_literals;

namespace {

// A pickle that must be refused: why, its bytes, the code, and the offset of the opcode to blame.
struct Case {
  const char* name;
  std::string bytes;
  ErrorCode code;
  uint64_t offset_bytes;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

const Case kCases[] = {
    {"no STOP", "\x80\x02N"s, ErrorCode::Corrupt, 3},
    {"empty", ""s, ErrorCode::Corrupt, 0},
    {"STOP with values left", "NN."s, ErrorCode::Corrupt, 2},
    {"STOP inside a mark", "(N."s, ErrorCode::Corrupt, 2},
    {"STOP on an empty stack", "."s, ErrorCode::Corrupt, 0},
    {"unknown opcode", "\xffN."s, ErrorCode::Corrupt, 0},
    {"protocol 6", "\x80\x06N."s, ErrorCode::Corrupt, 0},
    {"mark never set", "N\x86."s, ErrorCode::Corrupt, 1},
    {"tuple closes no mark", "Nt."s, ErrorCode::Corrupt, 1},
    {"value taken through a mark", "N(\x85."s, ErrorCode::Corrupt, 2},
    {"memo index never stored", "\x80\x02h\x05."s, ErrorCode::Corrupt, 2},
    {"memo index is no number", "gx\n."s, ErrorCode::Corrupt, 0},
    {"SETITEM on a list", "]NNs."s, ErrorCode::Corrupt, 3},
    {"SETITEMS on an int", "K\x01(NNu."s, ErrorCode::Corrupt, 5},
    {"a key without a value", "}(Nu."s, ErrorCode::Corrupt, 3},
    {"APPEND to a dict", "}Na."s, ErrorCode::Corrupt, 2},
    {"ADDITEMS to a list", "](N\x90."s, ErrorCode::Corrupt, 3},
    {"BUILD on an int", "K\x01N\x62."s, ErrorCode::Corrupt, 3},
    {"REDUCE with a list of arguments", "cos\nsystem\n]R."s, ErrorCode::Corrupt, 12},
    {"NEWOBJ_EX without a dict", "ca\nb\n)N\x92."s, ErrorCode::Corrupt, 7},
    {"unhashable key", "}(]Nu."s, ErrorCode::Corrupt, 4},
    {"string longer than the file", "X\xff\xff\xff\x7fN."s, ErrorCode::Corrupt, 5},
    {"string of 2^63 bytes", "\x8d\0\0\0\0\0\0\0\x80N."s, ErrorCode::Corrupt, 9},
    {"bytes of 2^64 - 1", "\x8e\xff\xff\xff\xff\xff\xff\xff\xff."s, ErrorCode::Corrupt, 9},
    {"negative LONG4", "\x8b\xff\xff\xff\xff."s, ErrorCode::Corrupt, 0},
    {"frame past the end", "\x95\xff\0\0\0\0\0\0\0N."s, ErrorCode::Corrupt, 0},
    {"string that is not UTF-8", "X\x01\0\0\0\xff."s, ErrorCode::Corrupt, 0},
    {"STACK_GLOBAL of numbers", "K\x01K\x02\x93."s, ErrorCode::Corrupt, 4},
    {"extension registry", "\x82\x01."s, ErrorCode::Unsupported, 0},
    {"out-of-band buffer", "\x97."s, ErrorCode::Unsupported, 0},
    {"GLOBAL without its line end", "cos"s, ErrorCode::Corrupt, 1},
    {"float that is no number", "Fx\n."s, ErrorCode::Corrupt, 0},
    {"quoted string without quotes", "Sx\n."s, ErrorCode::Corrupt, 0},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(corrupt_pickle)

BOOST_DATA_TEST_CASE(is_refused_at_the_opcode_to_blame, data::make(kCases), c) {
  const auto error = test::error_of([&] {
    ckpt::ByteReader reader(test::bytes_of(c.bytes), "data.pkl");
    ckpt::pickle::read(reader);
  });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == c.code));
  BOOST_TEST(error->where().file == "data.pkl");
  BOOST_TEST(error->where().offset_bytes.value() == c.offset_bytes);
}

// users.md P4: a memo index far ahead must not cost memory up to it.
BOOST_AUTO_TEST_CASE(a_sparse_memo_index_is_stored_and_found) {
  const std::string bytes =
      "K\x07r\xff\xff\xff\xff"
      "0j\xff\xff\xff\xff."s;  // PUT, POP, GET
  ckpt::ByteReader reader(test::bytes_of(bytes));
  BOOST_TEST(ckpt::pickle::read(reader).root().as_int() == 7);
}

// users.md P6: nesting is bounded by the bytes that are there, not by the machine's stack.
BOOST_AUTO_TEST_CASE(a_million_nested_tuples_are_read_copied_and_dropped) {
  const std::string bytes = ")"s + std::string(1'000'000, '\x85') + ".";
  ckpt::ByteReader reader(test::bytes_of(bytes));
  const ckpt::ValueTree tree = ckpt::pickle::read(reader);
  ckpt::ValueTree copy;
  copy.set_root(copy.copy(tree.root()));
  BOOST_TEST(copy.node_count() == 1'000'001u);
}

BOOST_AUTO_TEST_CASE(more_values_than_the_limit_are_refused) {
  ckpt::Limits limits;
  limits.pickle_nodes_max = 10;
  const std::string bytes = "("s + std::string(100, 'N') + "t.";
  const auto error = test::error_of([&] {
    ckpt::ByteReader reader(test::bytes_of(bytes));
    ckpt::pickle::read(reader, limits);
  });
  BOOST_TEST(error.has_value());
}

// users.md P1: whatever a pickle would call stays two names, and its arguments stay values.
BOOST_DATA_TEST_CASE(P1_what_python_would_run_is_kept_as_names,
                     data::make({"cos\nsystem\n(S'true'\ntR."s, "(S'true'\nios\nsystem\n."s,
                                 "(cos\nsystem\nS'true'\no."s,
                                 "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R."s,
                                 "\x80\x02"s + "cos\nsystem\nU\x04true\x85\x81."s}),
                     bytes) {
  ckpt::ByteReader reader(test::bytes_of(bytes));
  const ckpt::ValueTree tree = ckpt::pickle::read(reader);
  BOOST_TEST(tree.root().callable().is_global("os", "system"));
  BOOST_TEST(tree.root().args()[0].text() == "true");
}

// users.md P6: doublings that would print as 2^1000 elements are 1000 values.
BOOST_AUTO_TEST_CASE(P6_shared_values_are_read_once) {
  std::string bytes = ")";
  for (int i = 0; i < 1000; ++i) bytes += "2\x86";  // DUP, TUPLE2
  bytes += ".";
  ckpt::ByteReader reader(test::bytes_of(bytes));
  BOOST_TEST(ckpt::pickle::read(reader).node_count() == 1001u);
}

// users.md P7: one number has one kind, however many bytes a LONG spends on it.
BOOST_AUTO_TEST_CASE(P7_a_long_with_more_bytes_than_it_needs_is_an_int) {
  for (const auto& [bytes, value] :
       {std::pair("\x8a\x09\0\x01\0\0\0\0\0\0\0."s, 256),
        std::pair("\x8a\x0a\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff."s, -2)}) {
    ckpt::ByteReader reader(test::bytes_of(bytes));
    BOOST_TEST(ckpt::pickle::read(reader).root().as_int() == value);
  }
  const std::string large = "\x8a\x09\0\0\0\0\0\0\0\x80\0."s;  // 2^63
  ckpt::ByteReader reader(test::bytes_of(large));
  BOOST_TEST((ckpt::pickle::read(reader).root().kind() == ckpt::Kind::BigInt));
}

BOOST_AUTO_TEST_SUITE_END()
