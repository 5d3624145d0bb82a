#include "codec/crc32.h"

#include <boost/test/unit_test.hpp>

#include <vector>

namespace {

// Bit by bit, as the definition has it.
uint32_t register_after(std::span<const std::byte> bytes, uint32_t state) {
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0xEDB88320 : 0);
  }
  return state;
}

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes;
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    bytes.push_back(static_cast<std::byte>(state >> 24));
  }
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(crc32)

BOOST_AUTO_TEST_CASE(is_that_of_the_definition_at_every_length_and_alignment) {
  const std::vector<std::byte> bytes = some_bytes(1300);
  for (const size_t start : {0, 1, 7, 16, 63}) {
    for (size_t count = 0; count < 1200; ++count) {
      const auto part = std::span(bytes).subspan(start, count);
      const uint32_t before = static_cast<uint32_t>(count) * 0x01234567;
      BOOST_REQUIRE_EQUAL(ckpt::crc32(part, before), ~register_after(part, ~before));
    }
  }
}

BOOST_AUTO_TEST_CASE(does_not_depend_on_how_the_bytes_are_cut) {
  const std::vector<std::byte> bytes = some_bytes(1 << 16);
  const uint32_t whole = ckpt::crc32(bytes);
  for (size_t cut = 0; cut < bytes.size(); cut += 97) {
    const auto first = std::span(bytes).first(cut), second = std::span(bytes).subspan(cut);
    BOOST_REQUIRE_EQUAL(ckpt::crc32(second, ckpt::crc32(first)), whole);
    const uint32_t both =
        ckpt::crc32_of_both(ckpt::crc32(first), ckpt::crc32(second), second.size());
    BOOST_REQUIRE_EQUAL(both, whole);
  }
}

// Where ISA-L is the faster one, crc32() does not fold.
BOOST_AUTO_TEST_CASE(folded_bytes_lead_the_register_to_the_same_state) {
  if (!ckpt::can_fold()) return;
  const std::vector<std::byte> bytes = some_bytes(20 * ckpt::kFoldedBytes + 3);
  for (size_t blocks = 1; blocks <= 20; ++blocks) {
    const auto part = std::span(bytes).subspan(3, blocks * ckpt::kFoldedBytes);
    const ckpt::FoldedBytes folded = ckpt::fold(part, 0x89ABCDEF);
    BOOST_REQUIRE_EQUAL(register_after(std::as_bytes(std::span(folded)), 0),
                        register_after(part, 0x89ABCDEF));
  }
}

BOOST_AUTO_TEST_SUITE_END()
