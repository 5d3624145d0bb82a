#pragma once

#include <cstdint>
#include <optional>
#include <vector>

// How the vectors of one tensor stand in others, as axes: found from places alone. Pure.
namespace optim {

// A vector of a source; kUnknown: it is not known which.
struct VectorPlace {
  static constexpr uint32_t kUnknown = UINT32_MAX;
  uint32_t source = kUnknown;
  uint64_t index = 0;
  bool is_known() const { return source != kUnknown; }
};

// An axis of the target, along which the source's index grows by `stride`.
struct IndexAxis {
  uint64_t size = 1, stride = 1;
  bool operator==(const IndexAxis&) const = default;
};

struct IndexPart {
  uint32_t source = 0;
  uint64_t base = 0;              // the source's index of the first vector
  std::vector<IndexAxis> axes{};  // the outermost first
  bool operator==(const IndexPart&) const = default;
};

// What follows each other along the axis `joined`, whose sizes may differ; all others have one.
struct IndexRule {
  std::vector<IndexPart> parts;
  std::optional<size_t> joined;  // of one part: none
  bool operator==(const IndexRule&) const = default;
};

// The places of a target's vectors, in its order, as axes. Unknown places are taken as those beside
// them say: who uses the rule compares all bytes. nullopt: there is no such rule.
std::optional<IndexRule> find_index_rule(std::vector<VectorPlace> places);

// An axis of the source, of which the target has `count` from `first` on. `target`: which of
// IndexPart::axes it is, or kNone: it is there for its one index.
struct RadixAxis {
  static constexpr size_t kNone = SIZE_MAX;
  uint64_t size = 1, first = 0, count = 1;
  size_t target = kNone;
};
// The source's dimension of axes, outermost first, without those of one index in the target.
struct Radix {
  std::vector<RadixAxis> axes;
  uint64_t first_row = 0, row_count = 0;  // the axes are of these alone
};
// nullopt: the strides are not those of axes, one in another.
std::optional<Radix> radix_of(const IndexPart& part, uint64_t source_size);

// The rule with the first axis, of which that is true, as parts, so that each has a radix; the rule
// as it is, where it has one. nullopt: it has none.
std::optional<IndexRule> with_radix(IndexRule rule, const std::vector<uint64_t>& source_sizes);

// The rule with axes cut so that each is within one of these dimensions of the target; nullopt:
// they cannot be.
std::optional<IndexRule> cut_at_dims(IndexRule rule, const std::vector<uint64_t>& dims);

}  // namespace optim
