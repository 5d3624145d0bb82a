#include "codec/hash_functions.h"

// These functions say "deprecated", for EVP, with which a static libcrypto is a hundred times
// larger: all algorithms, which EVP finds by name.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/md5.h>
#include <openssl/sha.h>

#include <string>

#include "base/text.h"

#ifdef CKPT_STATIC_CRYPTO
// Finds out which instructions the processor has. The shared libcrypto does so from its section
// .init, which of the static one lld does not run.
extern "C" void OPENSSL_cpuid_setup();
#endif

namespace ckpt {
namespace {

#ifdef CKPT_STATIC_CRYPTO
[[maybe_unused]] const bool kProcessorIsKnown = (OPENSSL_cpuid_setup(), true);
#endif

}  // namespace

void Sha256Stream::Free::operator()(SHA256state_st* state) const { delete state; }

Sha256Stream::Sha256Stream() : state_(new SHA256_CTX) { SHA256_Init(state_.get()); }

void Sha256Stream::update(std::span<const std::byte> bytes) {
  SHA256_Update(state_.get(), bytes.data(), bytes.size());
}

void Sha256Stream::put(uint64_t number) {
  std::string bytes;
  append_little_endian(bytes, number);
  update(bytes);
}

void Sha256Stream::put(std::string_view text) {
  put(text.size());
  update(text);
}

Sha256 Sha256Stream::finish() {
  Sha256 digest;
  SHA256_Final(digest.bytes.data(), state_.get());
  SHA256_Init(state_.get());
  return digest;
}

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256Stream stream;
  stream.update(bytes);
  return stream.finish();
}

std::string hex(const Sha256& digest) {
  std::string text;
  for (const uint8_t byte : digest.bytes) append_hex(text, byte, 2);
  return text;
}

std::array<uint8_t, 16> md5(std::span<const std::byte> bytes) {
  std::array<uint8_t, MD5_DIGEST_LENGTH> digest;
  MD5(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

}  // namespace ckpt
