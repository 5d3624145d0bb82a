#pragma once

#include "support/targets.h"

namespace test {

// A target with what its members must hold.
struct KnownTarget {
  ckpt::Target target;
  std::vector<std::vector<std::string>> expected;  // by file: data of all records, in order
};

inline KnownTensor large_tensor(Random& random, MemoryPayloads& payloads) {
  KnownTensor tensor;
  tensor.entry.key = "large";
  tensor.entry.dtype = ckpt::DType::Float32;
  tensor.entry.shape = {1 + random() % 200, 1 + random() % 300};
  tensor.content = random_bytes(random, ckpt::count_bytes(tensor.entry));
  for (const ckpt::Box& box : random_grid(random, tensor.entry.shape)) {
    tensor.entry.chunks.push_back(store_row_major(random, payloads, tensor, box));
  }
  return tensor;
}

class TargetMaker {
 public:
  TargetMaker(Random& random, MemoryPayloads& payloads) : random_(random), payloads_(payloads) {}

  KnownTarget make() {
    const size_t file_count = 1 + random_() % 3;
    for (size_t f = 0; f < file_count; ++f) {
      known_.target.files.push_back({"folder/f" + std::to_string(f), {}, {}});
      known_.expected.emplace_back();
      const size_t archive_count = 1 + random_() % 8;
      for (size_t a = 0; a < archive_count; ++a) {
        known_.target.files.back().archives.push_back(archive());
      }
    }
    known_.target.files.push_back({"metadata.json", {}, "{}"});
    known_.target.files.push_back({"empty", {}, {}});
    known_.expected.resize(known_.target.files.size());
    return std::move(known_);
  }

 private:
  ckpt::TargetArchive archive() {
    if (random_() % 2 == 0) {
      const KnownTensor tensor = some_tensor();
      const ckpt::Box box = some_box(tensor);
      known_.expected.back().push_back(tensor.expected(box));
      return bare_archive(tensor, box);
    }
    std::vector<ckpt::TargetRecord> records;
    for (size_t r = random_() % 12; r > 0; --r) records.push_back(record());
    return tree_archive(std::move(records));
  }

  ckpt::TargetRecord record() {
    const std::string bytes = random_bytes(random_, random_() % 4 * (random_() % 50000));
    switch (random_() % 4) {
      case 0: known_.expected.back().push_back(bytes); return {bytes.size(), bytes};
      case 1:
        known_.expected.back().push_back(bytes);
        return {bytes.size(), ckpt::StorageSource{payloads_.add_storage(bytes)}};
      case 2: return segmented_record();
      default: {
        const KnownTensor tensor = some_tensor();
        const ckpt::Box box = some_box(tensor);
        known_.expected.back().push_back(tensor.expected(box));
        return record_of(tensor, box);
      }
    }
  }

  // Runs of elements of several tensors, with and without gaps between them.
  ckpt::TargetRecord segmented_record() {
    std::vector<ckpt::Segment> segments;
    std::string expected;
    for (size_t s = random_() % 6; s > 0; --s) {
      if (random_() % 2 == 0) expected.append(random_() % 300, '\0');
      const KnownTensor tensor = some_tensor();
      const ckpt::Box box = some_box(tensor);
      const uint64_t elements = ckpt::element_count(box.sizes);
      ckpt::Segment segment = {expected.size(), {shared(tensor), box}};
      segment.first_element = random_() % (elements + 1);
      segment.element_count = random_() % (elements - segment.first_element + 1);
      expected += tensor.expected(box).substr(segment.first_element * tensor.element_bytes(),
                                              segment.element_count * tensor.element_bytes());
      segments.push_back(std::move(segment));
    }
    if (random_() % 2 == 0) expected.append(random_() % 300, '\0');
    known_.expected.back().push_back(expected);
    return {expected.size(), std::move(segments)};
  }

  KnownTensor some_tensor() {
    return random_() % 3 == 0 ? large_tensor(random_, payloads_)
                              : random_tensor(random_, payloads_);
  }

  ckpt::Box some_box(const KnownTensor& tensor) {
    return random_() % 2 ? ckpt::whole(tensor.entry.shape)
                         : random_box(random_, tensor.entry.shape);
  }

  Random& random_;
  MemoryPayloads& payloads_;
  KnownTarget known_;
};

}  // namespace test
