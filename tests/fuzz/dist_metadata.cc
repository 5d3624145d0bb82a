// DCP's .metadata: the streaming reader accepts nothing that the general one refuses.
#include "format/torch_dist/dist_metadata.h"

#include "codec/pickle.h"
#include "fuzz/fuzz.h"
#include "support/memory_payloads.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const test::MemoryFile file(fuzz::text_of(data, size), ".metadata");
  std::optional<ckpt::DistMetadata> streamed;
  fuzz::succeeds([&] { streamed = ckpt::stream_dist_metadata(file, {}); });
  std::optional<ckpt::DistMetadata> general;
  fuzz::succeeds([&] {
    ckpt::ByteReader reader(std::as_bytes(std::span(data, size)), ".metadata");
    const ckpt::ValueTree tree = ckpt::pickle::read(reader);
    if (reader.at_end()) general = ckpt::interpret_dist_metadata(tree);
  });
  if (!streamed) return 0;
  if (!general || streamed->files != general->files) __builtin_trap();
  if (streamed->tensors.size() != general->tensors.size()) __builtin_trap();
  for (size_t i = 0; i < streamed->tensors.size(); ++i) {
    const ckpt::TensorEntry &a = streamed->tensors[i], &b = general->tensors[i];
    if (a.key != b.key || a.shape != b.shape || a.dtype != b.dtype) __builtin_trap();
    if (a.chunks.size() != b.chunks.size()) __builtin_trap();
    for (size_t c = 0; c < a.chunks.size(); ++c) {
      if (a.chunks[c].box != b.chunks[c].box) __builtin_trap();
      if (a.chunks[c].region.bytes != b.chunks[c].region.bytes) __builtin_trap();
    }
  }
  return 0;
}
