#include "codec/sha256.h"

#include <openssl/evp.h>

#include <new>
#include <string>

#include "base/text.h"

namespace ckpt {
namespace {

// Fetched once: OpenSSL 3 looks an algorithm up by name at every use of EVP_sha256().
const EVP_MD* algorithm() {
  static const std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> fetched(
      EVP_MD_fetch(nullptr, "SHA256", nullptr), EVP_MD_free);
  return fetched.get();
}

// OpenSSL fails here only without memory or without its default provider.
void require(bool succeeded) {
  if (!succeeded) throw std::bad_alloc();
}

}  // namespace

void Sha256Stream::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  require(context_ != nullptr && algorithm() != nullptr);
  start();
}

void Sha256Stream::start() {
  require(EVP_DigestInit_ex2(context_.get(), algorithm(), nullptr) == 1);
}

void Sha256Stream::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
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
  require(EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), nullptr) == 1);
  start();
  return digest;
}

std::string hex(const Sha256& digest) {
  std::string text;
  for (const uint8_t byte : digest.bytes) append_hex(text, byte, 2);
  return text;
}

}  // namespace ckpt
