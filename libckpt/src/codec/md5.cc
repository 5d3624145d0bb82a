#include "codec/md5.h"

#define OPENSSL_SUPPRESS_DEPRECATED  // as in codec/sha256.cc
#include <openssl/md5.h>

namespace ckpt {

std::array<uint8_t, 16> md5(std::span<const std::byte> bytes) {
  std::array<uint8_t, MD5_DIGEST_LENGTH> digest;
  MD5(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

}  // namespace ckpt
