#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/payload_source.h>

// Parts of tensors as Python writes them: weight[0:4, :8].
namespace ckpt {

// The indices of one dimension that a slice takes: start, start + step, ...
struct SliceDim {
  uint64_t start = 0;
  uint64_t step = 1;
  uint64_t count = 0;
  bool is_index = false;  // one integer: the dimension is none of the result's
};

struct Slice {
  std::vector<SliceDim> dims;  // one for each dimension of the tensor
  Extents shape() const;       // of the result
};

// All of a tensor.
Slice whole_slice(const Extents& shape);

// What stands between the brackets, as torch reads it on a tensor of this shape: integers,
// start:stop:step and at most one `...`, negative numbers from the end. Throws InvalidArgument,
// with the shape, for anything else: an integer that is out of range, a step below 1.
Slice parse_slice(std::string_view text, const Extents& shape);

// "weight[0:4, :8]" in two.
struct SlicedKey {
  std::string key;
  std::string slice;     // without the brackets
  bool is_sure = false;  // its characters are those of slices: it is hardly a set of a glob
};
// nullopt for a text that does not end with brackets.
std::optional<SlicedKey> split_slice(std::string_view typed);

// A part of a tensor as a tensor of its own: read entry() from this source. What the slice does not
// need is not read, but for gaps of up to 64 KiB between its elements, where that is quicker. The
// source must outlive it.
class SlicedTensor final : public PayloadSource {
 public:
  SlicedTensor(TensorEntry tensor, Slice slice, const PayloadSource& source);
  SlicedTensor(SlicedTensor&&) noexcept;
  ~SlicedTensor() override;

  const TensorEntry& entry() const;
  LocatedRegion locate(const StorageRegion& region) const override;
  void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// An element as text: True, -3, 0.1 (the shortest digits that read back as this value of its type,
// a float of up to 32 bits as a float), nan, inf, (1-2j).
std::string element_text(DType dtype, std::span<const std::byte> element);

}  // namespace ckpt
