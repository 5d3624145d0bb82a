// usage: example CHECKPOINT [KEY]. Lists the tensors of a checkpoint; with KEY, reads that one.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>

namespace {

std::string text_of(const ckpt::Extents& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

// Opening has read the metadata; no tensor is read here.
void list_tensors(const ckpt::Checkpoint& checkpoint) {
  for (const ckpt::TensorEntry& tensor : checkpoint.catalog().tensors) {
    std::printf("%-9s %-12s %s\n", std::string(ckpt::name(tensor.dtype)).c_str(),
                text_of(tensor.shape).c_str(), ckpt::escaped(tensor.key).c_str());
  }
}

// An element of a float32 or bfloat16 tensor; a bfloat16 is the upper half of a float32.
float element(ckpt::DType dtype, const std::vector<std::byte>& content, size_t index) {
  uint32_t bits = 0;
  if (dtype == ckpt::DType::Float32) {
    std::memcpy(&bits, &content[4 * index], 4);
  } else {
    uint16_t upper = 0;
    std::memcpy(&upper, &content[2 * index], 2);
    bits = uint32_t{upper} << 16;
  }
  return std::bit_cast<float>(bits);
}

const ckpt::TensorEntry& find(const ckpt::Catalog& catalog, const std::string& key) {
  const auto found = std::ranges::find(catalog.tensors, key, &ckpt::TensorEntry::key);
  if (found == catalog.tensors.end()) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = {}, .key = key}, "no such tensor");
  }
  return *found;
}

// read() gives the row-major bytes of any box of a tensor, however many chunks and files it is cut
// into; here of the whole.
void read_tensor(const ckpt::Checkpoint& checkpoint, const std::string& key) {
  const ckpt::TensorEntry& tensor = find(checkpoint.catalog(), key);
  std::vector<std::byte> content(ckpt::count_bytes(tensor));
  checkpoint.read(tensor, ckpt::whole(tensor.shape), content);
  std::printf("%s: %zu bytes in %zu chunks\n", ckpt::escaped(key).c_str(), content.size(),
              tensor.chunks.size());
  if (tensor.dtype != ckpt::DType::Float32 && tensor.dtype != ckpt::DType::BFloat16) return;
  const size_t count = content.size() / ckpt::bytes_per_element(tensor.dtype);
  for (size_t i = 0; i < std::min<size_t>(count, 4); ++i) {
    std::printf("  [%zu] %g\n", i, element(tensor.dtype, content, i));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s CHECKPOINT [KEY]\n", argv[0]);
    return 2;
  }
  try {
    const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(argv[1]);
    argc == 2 ? list_tensors(checkpoint) : read_tensor(checkpoint, argv[2]);
  } catch (const ckpt::Error& error) {  // the only exception that the library throws on purpose
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
