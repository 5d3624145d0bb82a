#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ckpt/plan.h>
#include <ckpt/target.h>

#include "write/archive_state.h"

namespace ckpt {

// Which records read the same rows of the source: columns of them, or copies of one another.
struct SharedReads {
  static constexpr uint32_t kAlone = UINT32_MAX;

  std::vector<std::vector<size_t>> groups;  // of Plan::records, ascending
  std::vector<uint32_t> group_numbers;      // by record, or kAlone; empty: nothing is shared
  // All files, in sets that have no group in common, ascending.
  std::vector<std::vector<uint32_t>> file_sets;

  const RecordPlan* first_record = nullptr;  // of the plan, which must outlive this

  // Its group, or kAlone.
  uint32_t group_of(const RecordPlan& record) const {
    return group_numbers.empty() ? kAlone
                                 : group_numbers[static_cast<size_t>(&record - first_record)];
  }
  size_t readers_max() const;  // who share rows at a time; 1: nothing is shared
};

// Of what some pieces write. A set has few files, so that few are open at a time: what more files
// share they share in several groups. Pure.
SharedReads find_shared_reads(const Target& target, const Plan& plan,
                              std::span<const Piece> pieces);

// In which order windows are composed, by index into the map: those of a file in their own, so that
// what is waited for has begun; those of files that share reads side by side. Pure.
std::vector<uint32_t> order_windows(const Target& target, const Plan& plan,
                                    const SharedReads& shared, const WindowMap& windows);

}  // namespace ckpt
