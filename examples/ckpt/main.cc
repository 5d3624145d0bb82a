// usage: example CHECKPOINT [KEY]. Lists the tensors of a checkpoint; with KEY, reads that one.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
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

// C++20 has no bfloat16: such tensors are read as bytes. One is the upper half of a float32.
std::vector<float> read_bfloat16(const ckpt::Checkpoint& checkpoint,
                                 const ckpt::TensorEntry& tensor) {
  std::vector<uint16_t> upper(ckpt::element_count(tensor.shape));
  checkpoint.read(tensor, ckpt::whole(tensor.shape), std::as_writable_bytes(std::span(upper)));
  std::vector<float> elements;
  for (const uint32_t bits : upper) elements.push_back(std::bit_cast<float>(bits << 16));
  return elements;
}

const ckpt::TensorEntry& find(const ckpt::Catalog& catalog, const std::string& key) {
  const auto found = std::ranges::find(catalog.tensors, key, &ckpt::TensorEntry::key);
  if (found == catalog.tensors.end()) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = {}, .key = key}, "no such tensor");
  }
  return *found;
}

// Any box of a tensor is read row-major, however many chunks and files it is cut into; here all of
// it. Elements of another type than the one that is asked for are an error.
void read_tensor(const ckpt::Checkpoint& checkpoint, const std::string& key) {
  const ckpt::TensorEntry& tensor = find(checkpoint.catalog(), key);
  const std::vector<float> elements = tensor.dtype == ckpt::DType::BFloat16
                                          ? read_bfloat16(checkpoint, tensor)
                                          : checkpoint.read_as<float>(tensor);
  std::printf("%s: %zu bytes in %zu chunks\n", ckpt::escaped(key).c_str(),
              static_cast<size_t>(ckpt::count_bytes(tensor)), tensor.chunks.size());
  for (size_t i = 0; i < std::min<size_t>(elements.size(), 4); ++i) {
    std::printf("  [%zu] %g\n", i, elements[i]);
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
