#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/inventory.h>

namespace ckpt {

struct DiffOptions {
  // Elements a and b are equal if their bits are, or if |a - b| <= atol + rtol * |b| with a
  // tolerance above 0. Tolerances are for tensors; objects must be equal.
  double atol = 0;
  double rtol = 0;
  // Looks at changes: what has not the same bits is a difference, however small; elements outside
  // of the tolerance are counted, and Products are taken.
  bool changes = false;
  bool keys_only = false;    // names, shapes and dtypes; reads no payload and no object
  size_t details_max = 100;  // ObjectDifference::details
  // Names that tensors had before the inventories were renamed: an object that holds them has them
  // still, and that is no difference.
  std::set<std::string, std::less<>> old_names = {};
  ExecuteOptions execution;
};

// How the elements of two tensors differ. The maxima are over differing elements with finite
// values.
struct ValueDifference {
  uint64_t element_count = 0;
  uint64_t different_count = 0;
  double max_abs = 0;  // max |a - b|
  double max_rel = 0;  // max |a - b| / |b|, over b != 0
  double norm = 0;     // root of the sum of (a - b)^2 over the same elements
  double norm_a = 0;   // root of the sum of a^2 over all elements of finite a
  // The norm of the difference in units of a's; infinite where a is 0.
  CKPT_EXPORT double relative_norm() const;
  // Representable values from a to b, at most; none for integers. Not what step-replay calls
  // max_ulp, whose unit is the one of a tensor's largest value.
  std::optional<double> max_ulp_distance;
  uint64_t nonfinite_count = 0;  // differing elements of which one is NaN or infinite
  // With DiffOptions::changes. Over elements of which both sides are finite.
  struct Products {
    double a_b = 0, a_a = 0, b_b = 0;  // sums of a * b, a * a, b * b
  };
  std::optional<Products> products;
  uint64_t outside_count = 0;    // differing elements outside of the tolerance
  Extents first_index;           // of the first differing element
  std::string first_a, first_b;  // its values, as text
};

// Key: the names are equal as text, but one is another type's (1 and "1").
enum class DifferenceKind : uint8_t { OnlyInA, OnlyInB, DType, Shape, Value, Key };
CKPT_EXPORT std::string_view name(DifferenceKind kind);  // "only_in_a", ..., "value"

struct TensorDifference {
  DifferenceKind kind = DifferenceKind::Value;
  std::string file;
  std::string key;
  const TensorEntry* a = nullptr;  // into the inventories; nullptr where it is missing
  const TensorEntry* b = nullptr;
  // Of kind Value; of kind DType where values differ that were rounded to one type.
  std::optional<ValueDifference> value;
  // Of kind DType: the values were compared, those of the wider type rounded to the other one; of
  // bfloat16 and float16 both as float32.
  bool is_rounded = false;
};

// Whether two values are one member of an enum. Python 3.11 stores members by name, other versions
// by value. Yes: of a signal whose number POSIX fixes. Maybe: one is C(VALUE), the other C.NAME,
// and no file says which member has which value.
enum class OneMember : uint8_t { No, Maybe, Yes };
OneMember one_member(const Value& a, const Value& b);

// Two values at one place of two objects' trees; nullopt where one side has nothing there.
struct PlaceDifference {
  std::string pointer;
  std::optional<Value> a, b;
  bool may_be_one = false;    // OneMember::Maybe
  Kind key_kind = Kind::Str;  // of the pointer's last step, where it is a mapping's
};

struct ObjectDifference {
  DifferenceKind kind = DifferenceKind::Value;
  std::string file;
  std::string key;
  const ObjectTree* a = nullptr;  // into the inventories; nullptr where it is missing
  const ObjectTree* b = nullptr;
  // Differing places, and the first of them: without tensors that are differences of their own.
  uint64_t place_count = 0;
  std::vector<PlaceDifference> details;
};

// Sorted by file, then key. Points into the inventories that were compared.
struct Differences {
  uint64_t tensor_count = 0;  // names in a or b
  uint64_t object_count = 0;
  std::vector<TensorDifference> tensors;
  std::vector<ObjectDifference> objects;
  bool none() const { return tensors.empty() && objects.empty(); }
};

struct DiffSide {
  const Inventory& inventory;
  const PayloadSource& source;
};

// Matches by file and key; entries that are listed twice are matched in order. Streams both sides;
// memory as hash(). Throws what hash() throws.
CKPT_EXPORT Differences diff(const DiffSide& a, const DiffSide& b, const DiffOptions& options = {});

}  // namespace ckpt
