// Tensors that lie in no file, as files of their own by number.
#include <algorithm>
#include <utility>

#include <ckpt/payload_source.h>

namespace ckpt {
namespace {

class ComputedPayloads final : public PayloadSource {
 public:
  ComputedPayloads(const PayloadSource& source, uint32_t first_file,
                   std::vector<ComputedTensor> tensors, std::string shown)
      : source_(source),
        first_file_(first_file),
        tensors_(std::move(tensors)),
        shown_(std::move(shown)) {}

  LocatedRegion locate(const StorageRegion& region) const override {
    return is_computed(region.file) ? LocatedRegion{region} : source_.locate(region);
  }
  void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    if (!is_computed(located.file)) return source_.read_bytes(located, offset_bytes, out);
    const ComputedTensor& tensor = tensors_.at(located.file - first_file_);
    tensor.fill((located.bytes.offset_bytes + offset_bytes) / tensor.element_bytes, out);
  }
  void read_once(const StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override {
    if (!is_computed(located.file)) return source_.read_once(located, offset_bytes, out);
    read_bytes(located, offset_bytes, out);
  }
  std::string file_name(uint32_t file) const override {
    return is_computed(file) ? shown_ : source_.file_name(file);
  }

 private:
  bool is_computed(uint32_t file) const { return file >= first_file_; }

  const PayloadSource& source_;
  uint32_t first_file_;
  std::vector<ComputedTensor> tensors_;
  std::string shown_;
};

}  // namespace

std::shared_ptr<const PayloadSource> with_computed(const PayloadSource& source, uint32_t first_file,
                                                   std::vector<ComputedTensor> tensors,
                                                   std::string shown) {
  return std::make_shared<ComputedPayloads>(source, first_file, std::move(tensors),
                                            std::move(shown));
}

Chunk chunk_of_computed(const TensorEntry& tensor, uint32_t file) {
  return {whole(tensor.shape), {.file = file, .bytes = {0, count_bytes(tensor)}}};
}

}  // namespace ckpt
