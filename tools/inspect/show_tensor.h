// What `show` tells of a tensor, or of a slice of one: its elements as NumPy prints them and as
// nested lists, and what they are like.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/slice.h>
#include <ckpt/statistics.h>
#include <training/opened_training.h>
#include <training/subjects.h>

#include "common/console.h"

namespace tools::inspect {

// A tensor, and what its chunks lie in.
struct TensorSource {
  const ckpt::TensorEntry& tensor;
  const ckpt::PayloadSource& source;
};

// The first `values_max` elements, row-major, in nested brackets; "..." where more follow. What is
// not printed is not read, and memory does not grow with the tensor.
void print_values(Console& console, const TensorSource& from, uint64_t values_max);

// The same as nested lists: numbers, true and false, and as text what JSON has no numbers for: nan,
// inf, -inf, and complex numbers. Throws InvalidArgument for more than 10^7 values.
nlohmann::json values_to_json(const TensorSource& from, uint64_t values_max);

struct TensorWishes {
  std::optional<uint64_t> values_max;  // print these; without, what they are like
  bool statistics_only = false;        // as a table, without objects
  bool histogram = false;
  bool quantiles = false;
};

// The tensor of a subject, or its slice as a tensor of its own. Both arguments must outlive it.
class ShownTensor {
 public:
  ShownTensor(const optim::Subject& subject, const optim::OpenedTraining& checkpoint);

  TensorSource source() const;
  const ckpt::TensorEntry& whole() const { return *subject_.tensor; }
  bool is_slice() const { return sliced_.has_value(); }
  const optim::Subject& subject() const { return subject_; }
  const optim::OpenedTraining& checkpoint() const { return checkpoint_; }

 private:
  const optim::Subject& subject_;
  const optim::OpenedTraining& checkpoint_;
  std::optional<ckpt::SlicedTensor> sliced_;
};

void print_tensor(Console& console, const ShownTensor& shown, const TensorWishes& wishes);
// `known`: its statistics, where they were made already.
nlohmann::json tensor_to_json(const ShownTensor& shown, const TensorWishes& wishes,
                              const ckpt::Statistics* known = nullptr);

// Of each subject that is a tensor, in their order; by several threads.
std::vector<ckpt::Statistics> make_statistics(std::span<const optim::Subject> subjects,
                                              const optim::OpenedTraining& checkpoint,
                                              const TensorWishes& wishes, Console& console);

}  // namespace tools::inspect
