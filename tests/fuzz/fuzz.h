#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ckpt/error.h>

// What a fuzzer, or the replay of its corpus, calls: libFuzzer's name. Any ckpt::Error is a good
// answer; anything else that leaves the call is a finding.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fuzz {

inline std::string text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

template <class Call>
bool succeeds(Call&& call) {
  try {
    call();
    return true;
  } catch (const ckpt::Error&) {
    return false;
  }
}

}  // namespace fuzz
