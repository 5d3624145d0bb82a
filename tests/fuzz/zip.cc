// The zip directory, and the torch.save archive around it with the tensors that it states.
#include "codec/zip.h"

#include <ckpt/document.h>

#include "format/torch/torch_save.h"
#include "fuzz/fuzz.h"
#include "support/memory_payloads.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const test::MemoryFile file(fuzz::text_of(data, size), "fuzz.pt");
  fuzz::succeeds([&] {
    for (const ckpt::zip::Member& member : ckpt::zip::read_directory(file, {0, size})) {
      if (member.data.end_bytes() > size) __builtin_trap();
    }
  });
  fuzz::succeeds([&] {
    const ckpt::Document document = ckpt::read_torch_save(file, 0, {0, size}, {});
    for (const ckpt::TensorAt& tensor : ckpt::tensors_in(document)) {
      ckpt::make_tensor_entry(document, tensor, "fuzz.pt");
    }
  });
  return 0;
}
