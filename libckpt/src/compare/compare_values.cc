// Tensors, element by element; values, place by place.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <unordered_set>

#include <ckpt/document.h>
#include <ckpt/error.h>

#include "base/text.h"
#include "codec/python_values.h"
#include "compare/compare.h"
#include "format/values/nesting.h"
#include "model/element.h"
#include "read/payload_reader.h"
#include "work/workers.h"

namespace ckpt {
namespace {

// |a - b|, exact for 64-bit integers until it is rounded once.
template <class Element>
double distance(typename Element::Bits a, typename Element::Bits b) {
  if constexpr (Element::kIsFloat) {
    return std::fabs(Element::value(a) - Element::value(b));
  } else {
    const __int128 difference = static_cast<__int128>(a) - static_cast<__int128>(b);
    return static_cast<double>(difference < 0 ? -difference : difference);
  }
}

template <class Element>
double ulp_distance(typename Element::Bits a, typename Element::Bits b) {
  using Wide = std::conditional_t<sizeof(a) <= 4, int64_t, __int128>;
  const Wide difference = static_cast<Wide>(Element::order(a)) - Element::order(b);
  return static_cast<double>(difference < 0 ? -difference : difference);
}

Extents index_of(uint64_t position, const Extents& shape) {
  Extents index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    index[dim] = position % shape[dim];
    position /= shape[dim];
  }
  return index;
}

struct Tolerance {
  double atol = 0;
  double rtol = 0;
  bool is_none() const { return atol == 0 && rtol == 0; }
};

// A sum of squares, the same however its elements are cut into pieces: lanes are by index.
class SquareSum {
 public:
  void add(uint64_t index, double value) { lanes_[index % kLanes] += value * value; }
  double root() const {
    double sum = 0;
    for (const double lane : lanes_) sum += lane;
    return std::sqrt(sum);
  }

  // Of all numbers that are finite, from an index on.
  template <class Element>
  void add_all(uint64_t index, std::span<const std::byte> bytes) {
    constexpr size_t kBytes = sizeof(typename Element::Bits);
    const uint64_t count = bytes.size() / kBytes;
    const auto value = [&](uint64_t i) {
      const double number = Element::value(load_bits<Element>(bytes.data() + i * kBytes));
      return std::fabs(number) <= std::numeric_limits<double>::max() ? number : 0;
    };
    uint64_t i = 0;
    for (; i < count && (index + i) % kLanes != 0; ++i) add(index + i, value(i));
    for (; i + kLanes <= count; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const double number = value(i + lane);
        lanes_[lane] += number * number;
      }
    }
    for (; i < count; ++i) add(index + i, value(i));
  }

 private:
  static constexpr size_t kLanes = 8;
  std::array<double, kLanes> lanes_{};
};

using Products = ValueDifference::Products;

// Not of complex elements. In the order of elements, so that it does not matter how they are cut
// into pieces.
void add_products(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                  Products& sums) {
  visit_element(dtype, [&](auto element) {
    using Element = decltype(element);
    for (uint64_t at = 0; at < a.size(); at += sizeof(typename Element::Bits)) {
      const double x = Element::value(load_bits<Element>(a.data() + at));
      const double y = Element::value(load_bits<Element>(b.data() + at));
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      sums.a_b += x * y;
      sums.a_a += x * x;
      sums.b_b += y * y;
    }
  });
}

// Compares two tensors of one dtype and shape that arrive in row-major pieces of whole elements.
class ElementComparer {
 public:
  ElementComparer(DType dtype, Tolerance tolerance, bool is_of_changes)
      : dtype_(dtype), tolerance_(tolerance), is_of_changes_(is_of_changes) {
    if (is_of_changes && !is_complex(dtype)) found_.products = ValueDifference::Products{};
  }

  void compare(std::span<const std::byte> a, std::span<const std::byte> b) {
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) {
      visit_element(dtype_, [&](auto element) { compare_as<decltype(element)>(a, b); });
    }
    if (found_.products) add_products(dtype_, a, b, *found_.products);
    position_ += a.size() / bytes_per_element(dtype_);
    if (!found_difference()) equal_bytes_ += a.size();
  }

  bool found_difference() const { return found_.different_count != 0; }
  uint64_t equal_bytes() const { return equal_bytes_; }  // before the first piece that differs

  // Of a tensor that differs, piece by piece from its first: compare() does not take it, since most
  // tensors of most checkpoints are equal.
  void add_norm_of(std::span<const std::byte> a) {
    visit_element(dtype_, [&](auto element) {
      using Element = decltype(element);
      squares_of_a_.add_all<Element>(normed_bytes_ / sizeof(typename Element::Bits), a);
    });
    normed_bytes_ += a.size();
  }

  ValueDifference result(const Extents& shape) const {
    ValueDifference difference = found_;
    difference.element_count = element_count(shape);
    if (found_difference()) difference.first_index = index_of(first_index_, shape);
    difference.norm = squares_.root();
    difference.norm_a = squares_of_a_.root();
    return difference;
  }

 private:
  template <class Element>
  bool is_within_tolerance(typename Element::Bits a, typename Element::Bits b) const {
    if (tolerance_.is_none()) return false;
    const double b_value = Element::value(b);
    if (!std::isfinite(Element::value(a)) || !std::isfinite(b_value)) return false;
    return distance<Element>(a, b) <= tolerance_.atol + tolerance_.rtol * std::fabs(b_value);
  }

  // False where a or b is not finite.
  template <class Element>
  bool measure(typename Element::Bits a, typename Element::Bits b, uint64_t index) {
    const double b_value = Element::value(b);
    if (!std::isfinite(Element::value(a)) || !std::isfinite(b_value)) return false;
    const double gap = distance<Element>(a, b);
    squares_.add(index, gap);
    found_.max_abs = std::max(found_.max_abs, gap);
    if (b_value != 0) found_.max_rel = std::max(found_.max_rel, gap / std::fabs(b_value));
    if constexpr (Element::kIsFloat) {
      found_.max_ulp_distance =
          std::max(found_.max_ulp_distance.value_or(0), ulp_distance<Element>(a, b));
    }
    return true;
  }

  template <class Element>
  void compare_as(std::span<const std::byte> a, std::span<const std::byte> b) {
    const uint64_t element_bytes = bytes_per_element(dtype_);
    const uint64_t before_bytes = position_ * element_bytes;
    for (uint64_t at = 0; at < a.size(); at += element_bytes) {
      bool differs = false, is_finite = true, is_outside = false;
      for (uint64_t part = at; part < at + element_bytes; part += sizeof(typename Element::Bits)) {
        const auto a_bits = load_bits<Element>(a.data() + part);
        const auto b_bits = load_bits<Element>(b.data() + part);
        if (a_bits == b_bits) continue;
        const bool is_near = is_within_tolerance<Element>(a_bits, b_bits);
        if (is_near && !is_of_changes_) continue;
        is_outside = is_outside || !is_near;
        const uint64_t index = (before_bytes + part) / sizeof(a_bits);
        is_finite = measure<Element>(a_bits, b_bits, index) && is_finite;
        differs = true;
      }
      if (!differs) continue;
      if (!is_finite) ++found_.nonfinite_count;
      if (is_outside && is_of_changes_) ++found_.outside_count;
      if (found_.different_count++ == 0) {
        first_index_ = position_ + at / element_bytes;
        found_.first_a = element_text(dtype_, a.data() + at);
        found_.first_b = element_text(dtype_, b.data() + at);
      }
    }
  }

  DType dtype_;
  Tolerance tolerance_;
  bool is_of_changes_;
  uint64_t position_ = 0;     // elements compared so far
  uint64_t first_index_ = 0;  // row-major
  uint64_t equal_bytes_ = 0, normed_bytes_ = 0;
  SquareSum squares_, squares_of_a_;
  ValueDifference found_;
};

void read(BoxReader& reader, const TensorEntry& tensor, std::span<std::byte> out) {
  within(tensor.file, tensor.key, [&] { reader.read(out); });
}

// Of the bytes before the first piece that differs, which were compared and let go.
void add_norm_of_equal(const TensorEntry& tensor, BoxReader&& reader, std::span<std::byte> buffer,
                       ElementComparer& comparer) {
  for (uint64_t left_bytes = comparer.equal_bytes(); left_bytes != 0; left_bytes -= buffer.size()) {
    buffer = buffer.first(std::min<uint64_t>(buffer.size(), left_bytes));
    read(reader, tensor, buffer);
    comparer.add_norm_of(buffer);
  }
}

using Maybe = std::optional<Value>;

struct Place {
  PointerPath::Step step;
  Maybe a, b;
  Kind key_kind = Kind::Str;
};

bool is_no_tensor(const Maybe& value) { return value && !as_tensor(*value); }

class TreeComparison {
 public:
  TreeComparison(const CanonicalEncoder& a, const CanonicalEncoder& b, const TreeOptions& options,
                 std::vector<PlaceDifference>& details)
      : a_encoder_(a), b_encoder_(b), options_(options), details_(details) {}

  uint64_t run(const Value& a, const Value& b) {
    open_.push_back({{}, a, b});
    while (!open_.empty()) {
      const Place place = std::move(open_.back());
      open_.pop_back();
      visit(place);
    }
    return count_;
  }

 private:
  void visit(const Place& place) {
    pointer_.enter(place.step);
    if (place.a && place.b) {
      if (is_equal(*place.a, *place.b)) return;
      // Shared values, and values that contain themselves, are compared once.
      const uint64_t pair = uint64_t{place.a->id()} << 32 | place.b->id();
      if (!visited_.insert(pair).second) return;
      if (open_children(place)) return;
    }
    if (!is_no_tensor(place.a) && !is_no_tensor(place.b) && options_.is_told(pointer_.whole()))
      return;
    ++count_;
    if (details_.size() >= options_.details_max) return;
    const bool may_be_one =
        place.a && place.b && one_member(*place.a, *place.b) == OneMember::Maybe;
    details_.push_back({pointer_.whole(), place.a, place.b, may_be_one, place.key_kind});
  }

  bool is_equal(const Value& a, const Value& b) const {
    return a_encoder_.encoding(a.id()) == b_encoder_.encoding(b.id());
  }

  // False where the two differ as a whole: other kinds or types, tensors, or an order of equal
  // parts.
  bool open_children(const Place& place) {
    const Value &a = *place.a, &b = *place.b;
    if (a.kind() != b.kind()) return false;
    const size_t first = open_.size();
    switch (a.kind()) {
      case Kind::List:
      case Kind::Tuple: open_elements(place); break;
      case Kind::Dict: open_items(a, b, ""); break;
      case Kind::Object:
        if (!open_object(place)) return false;
        break;
      default: return false;
    }
    const bool found = std::any_of(open_.begin() + static_cast<ptrdiff_t>(first), open_.end(),
                                   [this](const Place& child) { return differs(child); });
    if (!found) open_.resize(first, Place());
    std::reverse(open_.begin() + static_cast<ptrdiff_t>(first), open_.end());
    return found;
  }

  bool differs(const Place& place) const {
    return !place.a || !place.b || !is_equal(*place.a, *place.b);
  }

  void open_elements(const Place& place) {
    const Value &a = *place.a, &b = *place.b;
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      open_.push_back({pointer_.child(i), i < a.size() ? Maybe(a[i]) : std::nullopt,
                       i < b.size() ? Maybe(b[i]) : std::nullopt});
    }
  }

  void open_items(const Value& a, const Value& b, const char* mark) {
    TextMap<Value> in_b;
    for (const auto& [key, value] : items_of(b)) {
      in_b.insert_or_assign(b_encoder_.encoding(key.id()), value);
    }
    for (const auto& [key, value] : items_of(a)) {
      const auto twin = in_b.find(a_encoder_.encoding(key.id()));
      open_.push_back({pointer_.child(mark + key_text(key)), value,
                       twin == in_b.end() ? std::nullopt : Maybe(twin->second), key.kind()});
      if (twin != in_b.end()) in_b.erase(twin);
    }
    for (const auto& [key, value] : items_of(b)) {
      if (!in_b.contains(b_encoder_.encoding(key.id()))) continue;
      open_.push_back({pointer_.child(mark + key_text(key)), std::nullopt, value, key.kind()});
    }
  }

  // Objects of one class, built from equal arguments: their elements, items and attributes differ.
  bool open_object(const Place& place) {
    const Value &a = *place.a, &b = *place.b;
    if (as_tensor(a) || as_tensor(b) || signal_number(a) || signal_number(b)) return false;
    if (!is_equal(a.callable(), b.callable()) || !is_equal(a.args(), b.args())) return false;
    if (!open_state(place)) return false;
    open_elements(place);
    open_items(a, b, "");
    return true;
  }

  bool open_state(const Place& place) {
    const Maybe a = place.a->state(), b = place.b->state();
    if (!a && !b) return true;
    if (!a || !b) return false;
    if (is_equal(*a, *b)) return true;
    if (!a->is(Kind::Dict) || !b->is(Kind::Dict)) return false;
    open_items(*a, *b, "@");
    return true;
  }

  const CanonicalEncoder& a_encoder_;
  const CanonicalEncoder& b_encoder_;
  const TreeOptions& options_;
  std::vector<PlaceDifference>& details_;
  std::vector<Place> open_;
  PointerPath pointer_;
  std::unordered_set<uint64_t> visited_;
  uint64_t count_ = 0;
};

}  // namespace

std::vector<std::optional<ValueDifference>> compare_tensors(const std::vector<TensorPair>& pairs,
                                                            const PayloadSource& source_a,
                                                            const PayloadSource& source_b,
                                                            const DiffOptions& options) {
  uint64_t total_bytes = 0;
  for (const TensorPair& pair : pairs) total_bytes += 2 * count_bytes(pair.a);
  WorkMeter meter(options.execution, total_bytes);
  std::vector<std::optional<ValueDifference>> differences(pairs.size());
  run_with_slabs(pairs.size(), options.execution, [&](size_t i, std::span<std::byte> slab) {
    const TensorPair& pair = pairs[i];
    BoxReader a(pair.a, whole(pair.a.shape), source_a), b(pair.b, whole(pair.b.shape), source_b);
    ElementComparer comparer(pair.a.dtype, {options.atol, options.rtol}, options.changes);
    while (a.left_bytes() != 0) {
      const uint64_t count = std::min<uint64_t>(a.left_bytes(), slab.size() / 2);
      const auto a_bytes = slab.first(count), b_bytes = slab.subspan(count, count);
      meter.advance(2 * count);
      read(a, pair.a, a_bytes);
      read(b, pair.b, b_bytes);
      const bool differed = comparer.found_difference();
      comparer.compare(a_bytes, b_bytes);
      if (!comparer.found_difference()) continue;
      if (!differed) {
        add_norm_of_equal(pair.a, BoxReader(pair.a, whole(pair.a.shape), source_a), b_bytes,
                          comparer);
      }
      comparer.add_norm_of(a_bytes);
    }
    if (comparer.found_difference()) differences[i] = comparer.result(pair.a.shape);
  });
  return differences;
}

double ValueDifference::relative_norm() const {
  return norm_a != 0 ? norm / norm_a : std::numeric_limits<double>::infinity();
}

uint64_t compare_trees(const EncodedValue& a, const EncodedValue& b, const TreeOptions& options,
                       std::vector<PlaceDifference>& details) {
  return TreeComparison(a.encoder, b.encoder, options, details).run(a.value, b.value);
}

OneMember one_member(const Value& a, const Value& b) {
  const auto signal = signal_number(a);
  if (signal && signal == signal_number(b)) return OneMember::Yes;
  return may_be_one_member(a, b) ? OneMember::Maybe : OneMember::No;
}

}  // namespace ckpt
