#pragma once

#include <vector>

#include <ckpt/payload_source.h>
#include <training/opened_training.h>

#include "repair/shifted_state.h"

namespace optim {

// The files of a checkpoint, and the filler of a shifted state: lost masters are the weights, lost
// states 0.
class RepairedPayloads final : public ckpt::PayloadSource {
 public:
  // Reads the weights of lost elements. `source` must outlive it. Throws Unsupported where they are
  // too many to be kept.
  RepairedPayloads(const OpenedTraining& source, const ShiftedState& shifted);

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override;
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  void read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override;

 private:
  const OpenedTraining& source_;
  uint32_t filler_;
  std::vector<float> masters_;
};

}  // namespace optim
