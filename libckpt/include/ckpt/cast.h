#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/dtype.h>
#include <ckpt/export.h>
#include <ckpt/key_pattern.h>
#include <ckpt/payload_source.h>

namespace ckpt {

// How a tensor's elements become another type than storages have them in, where they are read:
// rounded to nearest, ties to even.
struct Cast {
  DType stored = DType::Float32;
  float added = 0;  // to each, in float32, before it is rounded
  // Numbers above the range of the type become infinite, and are counted; else they are refused.
  bool may_overflow = false;
  // Why no number may become 0, for the refusal; empty: it may.
  std::string zero_is_wrong = {};
};

// float32, bfloat16, float16: values of one are those of another when they are rounded.
inline bool can_round(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::BFloat16 || dtype == DType::Float16;
}
// These for each other; int16 for float32, as whole numbers.
CKPT_EXPORT bool can_cast(DType from, DType to);
// Whether it holds every value of each type that can be cast to it.
inline bool is_widening(DType to) { return to == DType::Float32; }

// The tensor with elements of another type, or of the same with a number added. Who reads it throws
// Unsupported for a value that does not fit. Throws InvalidArgument where the types cannot be cast,
// or it is cast already, but for a sum, which is rounded once then.
TensorEntry with_cast(TensorEntry tensor, DType to, Cast cast);

// The type in which storages have a tensor's elements.
inline DType stored_type(const TensorEntry& tensor) {
  return tensor.cast ? tensor.cast->stored : tensor.dtype;
}

// A tensor of products: each number of `values` times the scale of its block, in float32, rounded
// once to `type`. Values of uint8 are pairs of 4-bit numbers (e2m1), the lower half first.
struct Scaled {
  std::shared_ptr<const TensorEntry> values, scales;  // each in one row-major chunk
  Extents shape;                                      // of the products, two dimensions or more
  uint64_t block_rows = 1, block_columns = 1;         // of the last two dimensions
  DType type = DType::BFloat16;
};
// The tensor under a key, as the one content of a file of its own by number. Throws Unsupported for
// types that are neither values nor scales, Corrupt where their shapes do not belong together.
TensorEntry product_entry(const Scaled& scaled, std::string key, uint32_t file);
// `source`, and the files of such tensors from `first_file` on, which no file of it has. It must
// outlive the result.
std::shared_ptr<const PayloadSource> with_products(const PayloadSource& source, uint32_t first_file,
                                                   std::vector<Scaled> products);

// A matrix as e4m3 values and the float32 scale of each block, by which values are multiplied to
// get it back: 448 is the largest value of a block. Last blocks may be smaller. Who reads it throws
// Unsupported, with the key, for a block that has no such scale.
inline constexpr uint64_t kScaledBlock = 128;  // rows, and columns
struct BlockQuantized {
  ComputedTensor values, scales;
  Extents scales_shape;
};
BlockQuantized quantized(ComputedTensor matrix, DType type, const Extents& shape, std::string key);

// --dtype [KEYS=]TYPE. `keys`: a key or glob, of which the first that fits counts; empty: every
// tensor that no other rule names.
struct TypeRule {
  std::string keys;
  DType type = DType::Float32;
};

struct Target;

// Tensors of float32, bfloat16 and float16 in the types that rules give them; it counts them for
// the report.
class TypeChange {
 public:
  TypeChange() = default;  // leaves all as they are
  explicit TypeChange(std::span<const TypeRule> rules);

  // The tensor as the rules want it: the same where they leave it. `keeps_type`: its type is a part
  // of the model's definition, which only a rule that names its key changes. Throws
  // InvalidArgument where a key is named whose type is another.
  std::shared_ptr<const TensorEntry> apply(std::shared_ptr<const TensorEntry> tensor,
                                           std::string_view key, bool keeps_type = false);
  // Says in the target what was rounded, and what kept its type. To be called when all tensors were
  // asked for: throws NotFound for keys that name none of them, InvalidArgument where all that they
  // name have other types.
  void report(Target& target) const;

 private:
  struct Named {
    KeyPattern keys;
    DType type;
    uint64_t count = 0, cast_count = 0;  // tensors that fit; of types that can be cast
  };
  std::vector<Named> named_;
  std::vector<DType> all_;                             // none or one
  std::vector<std::string> keys_;                      // of all tensors
  std::map<std::pair<DType, DType>, uint64_t> casts_;  // from, to: tensors
  std::vector<std::string> kept_;                      // keys of those with keeps_type
  std::map<DType, uint64_t> others_;                   // tensors of types that stay
};

}  // namespace ckpt
