#pragma once

#include <utility>

#include "graph.h"

namespace kernels {

// A second stream beside a step's: a branch of the graph where the step is recorded. Its events are
// made once, so that queueing makes nothing.
class SideStream {
 public:
  cudaError_t make() {
    return Status()
        .then([&] { return stream_.make(); })
        .then([&] { return fork_.make(); })
        .then([&] { return join_.make(); })
        .get();
  }

  // `on_side` is queued on the side stream behind what `stream` was given so far, `beside` on
  // `stream`, which then waits for the other. It does so, too, where one of the two has failed:
  // whoever waits for `stream` finds nothing running.
  template <class OnSide, class Beside>
  cudaError_t run(cudaStream_t stream, OnSide&& on_side, Beside&& beside) {
    Status forked, status;
    forked.then([&] { return fork_.record(stream); }).then([&] {
      return fork_.hold(stream_.get());
    });
    if (forked.get() != cudaSuccess) return forked.get();
    status.then([&] { return std::forward<OnSide>(on_side)(stream_.get()); }).then([&] {
      return std::forward<Beside>(beside)(stream);
    });
    Status joined;
    joined.then([&] { return join_.record(stream_.get()); }).then([&] {
      return join_.hold(stream);
    });
    return status.then([&] { return joined.get(); }).get();
  }

 private:
  Stream stream_;
  Event fork_, join_;
};

}  // namespace kernels
