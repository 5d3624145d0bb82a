#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ckpt/diff.h>
#include <ckpt/dtype.h>

namespace ckpt {

struct Tolerance {
  double atol = 0;
  double rtol = 0;
  bool is_none() const { return atol == 0 && rtol == 0; }
};

// Compares two tensors of one dtype and shape that arrive in row-major pieces of whole elements.
class ElementComparer {
 public:
  ElementComparer(DType dtype, Tolerance tolerance) : dtype_(dtype), tolerance_(tolerance) {}

  void compare(std::span<const std::byte> a, std::span<const std::byte> b);
  bool found_difference() const { return found_.different_count != 0; }
  ValueDifference result(const Extents& shape) const;

 private:
  template <class Element>
  void compare_as(std::span<const std::byte> a, std::span<const std::byte> b);
  template <class Element>
  bool is_equal(typename Element::Bits a, typename Element::Bits b) const;
  // False where a or b is not finite.
  template <class Element>
  bool measure(typename Element::Bits a, typename Element::Bits b);

  DType dtype_;
  Tolerance tolerance_;
  uint64_t position_ = 0;     // elements compared so far
  uint64_t first_index_ = 0;  // row-major
  ValueDifference found_;
};

}  // namespace ckpt
