#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "format/torch_dist/dist_collector.h"

namespace ckpt {

// Hands pieces from the thread that reads to the one that collects, in their order.
class DistPieceQueue {
 public:
  // `waiting_max`: push() waits while so many are not popped yet.
  explicit DistPieceQueue(size_t waiting_max) : waiting_max_(waiting_max) {}

  // Leaves others in their place: empty ones, with the memory of some that were given back.
  void push(DistPieces& pieces) {
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return is_abandoned_ || waiting_.size() < waiting_max_; });
      waiting_.push_back(std::move(pieces));
      pieces = {};
      if (!spare_.empty()) {
        pieces = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    changed_.notify_one();
  }

  void give_back(DistPieces pieces) {
    pieces.clear();
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(pieces));
  }

  // Nobody will pop any more.
  void abandon() {
    {
      const std::lock_guard lock(mutex_);
      is_abandoned_ = true;
    }
    room_.notify_one();
  }

  // No more will come.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_one();
  }

  // Waits for the next ones; nullopt after the last.
  std::optional<DistPieces> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return std::nullopt;
    DistPieces next = std::move(waiting_.front());
    waiting_.pop_front();
    room_.notify_one();
    return next;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_, room_;
  const size_t waiting_max_;
  std::deque<DistPieces> waiting_;
  std::vector<DistPieces> spare_;
  bool is_closed_ = false, is_abandoned_ = false;
};

}  // namespace ckpt
