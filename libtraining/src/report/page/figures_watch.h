#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/statistics.h>
#include <ckpt/verify.h>
#include <training/report_page.h>
#include <training/training_state.h>

#include "state/watched_ranges.h"

namespace optim {

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
  WatchedStorages ranges_;
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
