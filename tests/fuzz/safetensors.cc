// The safetensors header.
#include "format/safetensors/safetensors_header.h"
#include "fuzz/fuzz.h"
#include "support/memory_payloads.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const test::MemoryFile file(fuzz::text_of(data, size), "model.safetensors");
  fuzz::succeeds([&] { ckpt::read_safetensors_header(file, 0, {0, size}, {}); });
  return 0;
}
