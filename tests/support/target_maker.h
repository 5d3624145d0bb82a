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
    switch (random_() % 3) {
      case 0:
        known_.expected.back().push_back(bytes);
        return {bytes.size(), bytes};
      case 1:
        known_.expected.back().push_back(bytes);
        return {bytes.size(), ckpt::StorageSource{payloads_.add_storage(bytes)}};
      default: {
        const KnownTensor tensor = some_tensor();
        const ckpt::Box box = some_box(tensor);
        known_.expected.back().push_back(tensor.expected(box));
        return record_of(tensor, box);
      }
    }
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
