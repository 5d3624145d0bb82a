#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "step/communication/gather_params.h"

namespace optim {

// The rounds in which a step on a GPU sends its parameters while it updates others: those of each
// gather in turn, dealt to a few parts of the update in that order.
// All processes of the groups make the same calls in the same order.
class ParamRounds {
 public:
  explicit ParamRounds(std::vector<std::unique_ptr<ParamGather>> gathers);

  // Ids of this process's parameters that each part must have updated before it is sent.
  std::vector<std::vector<uint32_t>> ids_of_parts() const;
  void start(size_t part);  // its rounds leave, behind what is queued
  void finish();            // what is queued from now on finds all parameters everywhere

  // More parts would hide more of the sending, and cost launches and smaller batches of matrices.
  static constexpr size_t kPartsMost = 4;

 private:
  struct Round {
    ParamGather* gather;
    int64_t number;
  };
  size_t part_count() const;
  std::vector<Round> rounds_of(size_t part) const;

  std::vector<std::unique_ptr<ParamGather>> gathers_;
  std::vector<Round> rounds_;
};

}  // namespace optim
