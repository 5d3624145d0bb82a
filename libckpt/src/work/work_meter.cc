#include "work/work_meter.h"

#include <ckpt/error.h>

#include <algorithm>

namespace ckpt {

void WorkMeter::stop_if_requested() const {
  if (options_.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
}

void WorkMeter::advance(uint64_t bytes) {
  stop_if_requested();
  const std::scoped_lock lock(mutex_);
  progress_.done_bytes += bytes;
  progress_.total_bytes = std::max(progress_.total_bytes, progress_.done_bytes);
  if (options_.on_progress) options_.on_progress(progress_);
}

}  // namespace ckpt
