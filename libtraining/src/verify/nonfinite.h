#pragma once

#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <training/opened_training.h>
#include <training/verify.h>

#include "state/value_scan.h"
#include "verify/trained_tensors.h"

namespace optim {

// Says what NaN and infinities in a tensor are: damage in a model's or an optimizer's, unless they
// are allowed or a mask; a note elsewhere.
class NonfiniteValues {
 public:
  // `allowed`: globs over keys, as --include takes them; `more`: tensors that are in no catalog.
  NonfiniteValues(const OpenedTraining& checkpoint, const std::vector<std::string>& allowed,
                  const std::deque<ckpt::TensorEntry>& more, VerifyReport& report);

  // Of values of a tensor, which are at `place`. False where that is damage.
  bool tell(const ckpt::TensorEntry& tensor, const ckpt::Where& place, const ValueScan& values);

 private:
  bool is_mask(const ckpt::TensorEntry& tensor) const;

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  TrainedTensors trained_;
  bool may_allow_;
  ckpt::KeySelection allowed_;
  std::set<std::pair<std::string, std::string>> allowed_tensors_;  // in which something was
};

// Where a finding about a chunk is.
ckpt::Where place_of(const OpenedTraining& checkpoint, const ckpt::TensorEntry& tensor,
                     const ckpt::Chunk& chunk);
// A chunk as a tensor of its own.
ckpt::TensorEntry chunk_alone(const ckpt::TensorEntry& tensor, ckpt::Chunk chunk);
// "1 value is NaN, at index 3".
std::string text_of(const Unwanted& unwanted, std::string_view what);

}  // namespace optim
