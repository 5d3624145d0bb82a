#pragma once

struct SHA256state_st;

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <ckpt/hash.h>

namespace ckpt {

// SHA-256 of bytes that arrive in pieces. finish() gives the digest and starts anew.
class Sha256Stream {
 public:
  Sha256Stream();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view bytes) { update(std::as_bytes(std::span(bytes))); }
  // Eight bytes, least significant first; a text after its length.
  void put(uint64_t number);
  void put(std::string_view text);
  Sha256 finish();

 private:
  struct Free {
    void operator()(SHA256state_st* state) const;
  };
  std::unique_ptr<SHA256state_st, Free> state_;
};

Sha256 sha256(std::span<const std::byte> bytes);
inline Sha256 sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

// RFC 1321. Object stores state it of what they received; it protects against nobody.
std::array<uint8_t, 16> md5(std::span<const std::byte> bytes);

}  // namespace ckpt
