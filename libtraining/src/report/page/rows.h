#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/box.h>
#include <ckpt/statistics.h>
#include <ckpt/verify.h>
#include <training/opened_training.h>
#include <training/report_page.h>
#include <training/training_state.h>

#include "state/watched_ranges.h"

// What a report is made of.
namespace optim {

// The tensors of a report, and where they are, by the same index.
struct ReportRows {
  std::vector<ReportedTensor> tensors;
  std::vector<TensorRef> entries;
};

// Each once as the training run has it where `state` names them, else as they are stored.
ReportRows list_rows(const OpenedTraining& checkpoint, const TrainingState* state);

// Marks what is conspicuous: values that are not finite; optimizer state that is zero everywhere;
// state whose root mean square is far from the median of its kind.
void add_marks(std::span<ReportedTensor> tensors);

// Of parameters that have the state of an optimizer, in their order. `summary`: the groups that
// the rows' optimizer and group are of, and the step. Reads a part of the elements of large ones.
std::vector<UpdateNorm> list_updates(const OpenedTraining& checkpoint, const Summary& summary,
                                     const ReportRows& rows);

// Boxes of a tensor, in order and without overlap, each a run of its row-major elements: all of it,
// or runs that are spread evenly, of `element_count_max` elements together.
std::vector<ckpt::Box> spread_boxes(const ckpt::Extents& shape, uint64_t element_count_max);

// How many bytes of each tensor may be read, so that it is `bytes_max` of all: the same of each,
// but not more than it has.
std::vector<uint64_t> shared_out(std::span<const TensorRef> tensors, uint64_t bytes_max);

TensorFigures figures_of(const ckpt::Statistics& statistics);

// Takes the statistics of tensors while ckpt::verify() reads their storages.
class FiguresWatch {
 public:
  // `tensors` must outlive it.
  explicit FiguresWatch(std::span<const TensorRef> tensors);

  void see(const ckpt::StoragePiece& piece);  // thread-safe

  // Of tensors all bytes of which came by; the others, whose chunks are not runs of bytes, or whose
  // storages could not be read, have to be looked at otherwise.
  std::vector<std::optional<TensorFigures>> take() { return std::move(figures_); }

 private:
  void add(size_t tensor);
  void see(size_t tensor, uint64_t begin_bytes, std::span<const std::byte> bytes);
  void merge(size_t tensor, ckpt::StatisticsSum sum, uint64_t count_bytes);

  std::span<const TensorRef> tensors_;
  WatchedStorages<size_t> ranges_;
  static constexpr size_t kLocks = 64;
  struct Open {  // tensors of which some bytes came by
    std::mutex mutex;
    std::map<size_t, ckpt::StatisticsSum> sums;
  };
  std::array<Open, kLocks> open_;
  std::vector<uint64_t> left_bytes_;  // by tensor
  std::vector<std::optional<TensorFigures>> figures_;
};

}  // namespace optim
