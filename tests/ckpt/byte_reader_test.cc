#include "base/byte_reader.h"

#include <boost/test/unit_test.hpp>

#include "base/checked_math.h"
#include "support/errors.h"
#include "support/memory_payloads.h"

using ckpt::ByteReader;
using ckpt::ErrorCode;
using test::bytes_of;
using test::error_of;

BOOST_AUTO_TEST_SUITE(byte_reader)

BOOST_AUTO_TEST_CASE(numbers_are_little_endian_unless_named_otherwise) {
  const std::string content("\x01\x02\x03\x04\x05\x06\x07\x08\xff\xff\xff\xfe\xff\xff\xff", 15);
  ByteReader reader(bytes_of(content));
  BOOST_TEST(reader.u8() == 1);
  BOOST_TEST(reader.u16() == 0x0302);
  BOOST_TEST(reader.u32() == 0x07060504u);
  BOOST_TEST(reader.u8() == 8);
  BOOST_TEST(reader.u8() == 0xff);
  BOOST_TEST(reader.u16() == 0xffff);
  BOOST_TEST(reader.i32() == -2);
  BOOST_TEST(reader.at_end());
  reader.seek(0);
  BOOST_TEST(reader.u64() == 0x0807060504030201u);
}

BOOST_AUTO_TEST_CASE(doubles_are_big_endian) {
  const std::string content("\x3f\xf8\0\0\0\0\0\0", 8);
  ByteReader reader(bytes_of(content));
  BOOST_TEST(reader.f64_be() == 1.5);
}

BOOST_AUTO_TEST_CASE(a_line_ends_at_the_line_feed_and_consumes_it) {
  const std::string content = "one\n\ntwo";
  ByteReader reader(bytes_of(content));
  BOOST_TEST(reader.line() == "one");
  BOOST_TEST(reader.line() == "");
  const auto error = error_of([&] { reader.line(); });
  BOOST_REQUIRE(error);
  BOOST_TEST(*error->where().offset_bytes == 5);
  BOOST_TEST(reader.text(3) == "two");
  BOOST_TEST(error_of([&] { reader.line(); }).has_value());
}

BOOST_AUTO_TEST_CASE(reading_past_the_end_names_file_and_offset_and_moves_nothing) {
  const std::string content = "abcde";
  ByteReader reader(bytes_of(content), "x.pt", 1000);
  reader.skip(3);
  const auto error = error_of([&] { reader.u32(); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->what() == "x.pt @1003: ends early: expected 4 more bytes, found 2");
  BOOST_TEST(reader.text(2) == "de");
  BOOST_TEST(error_of([&] { reader.bytes(~uint64_t{0}); }).has_value());
  BOOST_TEST(error_of([&] { reader.seek(6); }).has_value());
}

BOOST_AUTO_TEST_CASE(a_count_is_refused_before_anything_is_allocated_for_it) {
  const std::string content(100, 'x');
  const ByteReader reader(bytes_of(content));
  BOOST_TEST(reader.count_of(10, 10) == 10);
  BOOST_TEST(error_of([&] { reader.count_of(11, 10); }).has_value());
  BOOST_TEST(error_of([&] { reader.count_of(~uint64_t{0}, 8); }).has_value());
}

BOOST_AUTO_TEST_CASE(checked_arithmetic_says_nullopt_instead_of_wrapping) {
  const uint64_t max = ~uint64_t{0};
  BOOST_TEST(ckpt::checked_add(max - 1, 1).value() == max);
  BOOST_TEST(!ckpt::checked_add(max, 1));
  BOOST_TEST(ckpt::checked_mul(1u << 31, 2).value() == uint64_t{1} << 32);
  BOOST_TEST(!ckpt::checked_mul(uint64_t{1} << 32, uint64_t{1} << 32));
  BOOST_TEST(ckpt::fits(4, 6, 10));
  BOOST_TEST(!ckpt::fits(4, 7, 10));
  BOOST_TEST(!ckpt::fits(11, 0, 10));
  BOOST_TEST(!ckpt::fits(1, max, 10));
  BOOST_TEST(ckpt::align_up(0, 64) == 0);
  BOOST_TEST(ckpt::align_up(1, 64) == 64);
  BOOST_TEST(ckpt::align_up(64, 64) == 64);
}

BOOST_AUTO_TEST_SUITE_END()
