#include "codec/big_integer.h"

#include <openssl/bn.h>

#include <algorithm>
#include <memory>
#include <new>

namespace ckpt::pickle {
namespace {

using Number = std::unique_ptr<BIGNUM, decltype(&BN_free)>;

Number owned(BIGNUM* number) {
  if (number == nullptr) throw std::bad_alloc();
  return {number, BN_free};
}

void require(int success) {  // only memory can be missing
  if (success == 0) throw std::bad_alloc();
}

// Adds 2^(8 * count_bytes), or takes it off: between a negative number and its two's complement.
void move_by_power(BIGNUM* number, int count_bytes, decltype(&BN_add) operation) {
  const Number power = owned(BN_new());
  require(BN_set_bit(power.get(), 8 * count_bytes));
  require(operation(number, number, power.get()));
}

}  // namespace

std::optional<int64_t> small_integer(std::span<const std::byte> little_endian) {
  if (little_endian.empty()) return 0;
  const bool negative = (static_cast<uint8_t>(little_endian.back()) & 0x80) != 0;
  const auto sign_byte = static_cast<std::byte>(negative ? 0xFF : 0);
  const auto repeats_sign = [&](std::byte byte) { return byte == sign_byte; };
  if (little_endian.size() > 8) {  // more bytes than the number needs are as good as it
    const auto rest = little_endian.subspan(8);
    const bool same_sign = ((little_endian[7] ^ sign_byte) & std::byte{0x80}) == std::byte{0};
    if (!same_sign || !std::ranges::all_of(rest, repeats_sign)) return std::nullopt;
    little_endian = little_endian.first(8);
  }
  uint64_t bits = negative ? ~uint64_t{0} : 0;
  for (size_t i = little_endian.size(); i-- > 0;) {
    bits = bits << 8 | static_cast<uint8_t>(little_endian[i]);
  }
  return static_cast<int64_t>(bits);
}

std::optional<std::string> decimal_text(std::span<const std::byte> little_endian) {
  if (little_endian.size() > kBigIntegerBytesMax) return std::nullopt;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(little_endian.data());
  const int count_bytes = static_cast<int>(little_endian.size());
  const Number number = owned(BN_lebin2bn(bytes, count_bytes, nullptr));
  const bool negative = count_bytes > 0 && (bytes[count_bytes - 1] & 0x80) != 0;
  if (negative) move_by_power(number.get(), count_bytes, BN_sub);
  char* const text = BN_bn2dec(number.get());
  if (text == nullptr) throw std::bad_alloc();
  const std::string decimal(text);
  OPENSSL_free(text);
  return decimal;
}

std::string little_endian_bytes(std::string_view decimal) {
  Number number = owned(BN_new());
  BIGNUM* parsed = number.get();
  require(BN_dec2bn(&parsed, std::string(decimal).c_str()));
  const bool negative = BN_is_negative(parsed) != 0;
  if (negative) require(BN_add_word(parsed, 1));        // -128 takes the bits of 127
  const int count_bytes = BN_num_bits(parsed) / 8 + 1;  // with room for the sign
  if (negative) {
    require(BN_sub_word(parsed, 1));
    move_by_power(parsed, count_bytes, BN_add);
  }
  std::string bytes(static_cast<size_t>(count_bytes), '\0');
  require(BN_bn2lebinpad(parsed, reinterpret_cast<unsigned char*>(bytes.data()), count_bytes) >= 0);
  return bytes;
}

bool is_decimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.size() <= kBigIntegerBytesMax * 2 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace ckpt::pickle
