// Owners of CUDA's streams, events and graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "call_status.h"

namespace kernels {

// A stream of our own.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaError_t make() { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A place in a stream that others can wait for.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  bool is_recorded() const { return is_recorded_; }
  cudaError_t make() {
    if (event_ != nullptr) return cudaSuccess;
    return cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync);
  }
  cudaError_t record(cudaStream_t stream) {
    return Status()
        .then([&] { return make(); })
        .then([&] {
          const cudaError_t error = cudaEventRecord(event_, stream);
          is_recorded_ = is_recorded_ || error == cudaSuccess;
          return error;
        })
        .get();
  }
  cudaError_t hold(cudaStream_t stream) const {
    return reported(cudaStreamWaitEvent(stream, event_, 0));
  }
  cudaError_t wait() const { return reported(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
  bool is_recorded_ = false;
};

// A recorded part of the step.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }

  bool is_recorded() const { return executable_ != nullptr; }
  cudaError_t launch(cudaStream_t stream) const {
    return reported(cudaGraphLaunch(executable_, stream));
  }

  // Records what `queue` does to `stream`, which is not the default stream: that one cannot record.
  template <class Queue>
  cudaError_t record(cudaStream_t stream, Queue&& queue) {
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error == cudaSuccess) {
      const cudaError_t queued = queue(stream);
      error = cudaStreamEndCapture(stream, &graph);
      if (queued != cudaSuccess) error = queued;
    }
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable_, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return reported(error);
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

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
