#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <ckpt/box.h>
#include <ckpt/catalog.h>

#include "support/memory_payloads.h"

namespace test {

using Random = std::mt19937;

inline std::string random_bytes(Random& random, uint64_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Row-major bytes of a box of a tensor whose row-major bytes are `content`: the plain way, element
// by element, against which the fast one is tested.
inline std::string cut_box(const std::string& content, const ckpt::Extents& shape,
                           const ckpt::Box& box, uint64_t element_bytes) {
  std::string result;
  const uint64_t count = ckpt::element_count(box.sizes);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rest = i, position = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      position += (box.offsets[d] + rest % box.sizes[d]) * stride;
      rest /= box.sizes[d];
      stride *= shape[d];
    }
    result.append(content, position * element_bytes, element_bytes);
  }
  return result;
}

// A box cut into a grid of boxes by cuts at random places; in random order.
inline std::vector<ckpt::Box> random_grid(Random& random, const ckpt::Extents& shape) {
  std::vector<ckpt::Box> boxes{ckpt::whole(shape)};
  for (size_t d = 0; d < shape.size(); ++d) {
    const uint64_t pieces = 1 + random() % 3;
    for (uint64_t p = 1; p < pieces; ++p) {
      const uint64_t cut = random() % shape[d];
      std::vector<ckpt::Box> next;
      for (const ckpt::Box& box : boxes) {
        const uint64_t end = box.offsets[d] + box.sizes[d];
        if (cut <= box.offsets[d] || cut >= end) {
          next.push_back(box);
          continue;
        }
        ckpt::Box low = box, high = box;
        low.sizes[d] = cut - box.offsets[d];
        high.offsets[d] = cut;
        high.sizes[d] = end - cut;
        next.push_back(low);
        next.push_back(high);
      }
      boxes = std::move(next);
    }
  }
  std::ranges::shuffle(boxes, random);
  return boxes;
}

inline ckpt::Box random_box(Random& random, const ckpt::Extents& shape) {
  ckpt::Box box = ckpt::whole(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    box.offsets[d] = random() % shape[d];
    box.sizes[d] = 1 + random() % (shape[d] - box.offsets[d]);
  }
  return box;
}

inline ckpt::Extents random_shape(Random& random, size_t dims_max, uint64_t size_max) {
  ckpt::Extents shape(random() % (dims_max + 1));
  for (uint64_t& size : shape) size = 1 + random() % size_max;
  return shape;
}

// A tensor with its true bytes beside it.
struct KnownTensor {
  ckpt::TensorEntry entry;
  std::string content;  // row-major

  uint64_t element_bytes() const { return ckpt::bytes_per_element(entry.dtype); }
  std::string expected(const ckpt::Box& box) const {
    return cut_box(content, entry.shape, box, element_bytes());
  }
};

// Stores a box row-major, at a random place of a storage.
inline ckpt::Chunk store_row_major(Random& random, MemoryPayloads& payloads,
                                   const KnownTensor& tensor, const ckpt::Box& box) {
  const uint64_t before_bytes = random() % 2 * 8 * (random() % 5);
  const std::string storage = random_bytes(random, before_bytes) + tensor.expected(box) +
                              random_bytes(random, random() % 2 * 8);
  return {box, payloads.add_storage(storage), before_bytes};
}

// Stores a box with its dimensions in another order in memory, and holes between the rows.
inline ckpt::Chunk store_as_view(Random& random, MemoryPayloads& payloads,
                                 const KnownTensor& tensor, const ckpt::Box& box) {
  const uint64_t element_bytes = tensor.element_bytes();
  std::vector<size_t> order(box.sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::shuffle(order, random);
  ckpt::StridedView view{random() % 7, ckpt::Extents(box.sizes.size())};
  uint64_t stride = 1 + random() % 3;
  for (const size_t d : order) {
    view.strides[d] = stride;
    stride *= box.sizes[d] + random() % 3;
  }
  std::string storage = random_bytes(random, (view.offset + stride) * element_bytes);
  const std::string content = tensor.expected(box);
  const ckpt::Extents strides = ckpt::row_major_strides(box.sizes);
  for (uint64_t i = 0; i < ckpt::element_count(box.sizes); ++i) {
    uint64_t at = view.offset;
    for (size_t d = 0; d < strides.size(); ++d)
      at += i / strides[d] % box.sizes[d] * view.strides[d];
    storage.replace(at * element_bytes, element_bytes, content, i * element_bytes, element_bytes);
  }
  return {box, payloads.add_storage(storage), 0, std::make_shared<const ckpt::StridedView>(view)};
}

// A tensor of random type, shape and bytes, cut into a random grid of chunks.
inline KnownTensor random_tensor(Random& random, MemoryPayloads& payloads) {
  constexpr ckpt::DType kTypes[] = {ckpt::DType::UInt8, ckpt::DType::BFloat16, ckpt::DType::Float32,
                                    ckpt::DType::Int64, ckpt::DType::Complex128};
  KnownTensor tensor;
  tensor.entry.key = "tensor" + std::to_string(random() % 1000);
  tensor.entry.dtype = kTypes[random() % std::size(kTypes)];
  tensor.entry.shape = random_shape(random, 4, 7);
  tensor.content =
      random_bytes(random, ckpt::element_count(tensor.entry.shape) * tensor.element_bytes());
  for (const ckpt::Box& box : random_grid(random, tensor.entry.shape)) {
    tensor.entry.chunks.push_back(random() % 3 == 0
                                      ? store_as_view(random, payloads, tensor, box)
                                      : store_row_major(random, payloads, tensor, box));
  }
  return tensor;
}

}  // namespace test
