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
CKPT_EXPORT TensorEntry with_cast(TensorEntry tensor, DType to, Cast cast);

// The type in which storages have a tensor's elements.
inline DType stored_type(const TensorEntry& tensor) {
  return tensor.cast ? tensor.cast->stored : tensor.dtype;
}

// --dtype [KEYS=]TYPE. `keys`: a key or glob, of which the first that fits counts; empty: every
// tensor that no other rule names.
struct TypeRule {
  std::string keys;
  DType type = DType::Float32;
};

struct Target;

// Tensors of float32, bfloat16 and float16 in the types that rules give them; it counts them for
// the report.
class CKPT_EXPORT TypeChange {
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
