// The pickle reader; what it reads is written and read again, to the same bytes.
#include "codec/pickle.h"
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  fuzz::succeeds([&] {
    ckpt::ByteReader reader(bytes, "data.pkl");
    const ckpt::ValueTree tree = ckpt::pickle::read(reader);
    std::string written;
    if (!fuzz::succeeds([&] { written = ckpt::pickle::write(tree, 4); })) return;
    ckpt::ByteReader again(std::as_bytes(std::span(written)), "written");
    const ckpt::ValueTree copy = ckpt::pickle::read(again);
    if (ckpt::pickle::write(copy, 4) != written) __builtin_trap();
  });
  return 0;
}
