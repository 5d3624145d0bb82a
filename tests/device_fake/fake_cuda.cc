// A cudart that records. Rules of the real ones that a caller can get wrong are kept: a
// stream that captures cannot be waited for, handles must be alive, arguments fit 4 KiB.
#include "fake_cuda.h"

#include "inside_fake.h"

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

using namespace fake_cuda;

struct CUstream_st {
  std::optional<std::vector<Call>> captured;  // while it captures
  bool is_invalid = false;                    // something that cannot be captured was tried
  cudaStream_t origin = nullptr;              // whose capture it was drawn into by an event
  uint64_t given = 0;                         // pieces of work so far
  std::map<cudaStream_t, uint64_t> joined;    // of a capture's branches: their work that is behind
};
struct CUevent_st {
  bool is_recorded = false;
  cudaStream_t stream = nullptr, capture = nullptr;  // where it was recorded, and in whose capture
  uint64_t given = 0;
};
struct CUgraph_st {
  std::vector<Call> nodes;
};
struct CUgraphExec_st {
  std::vector<Call> nodes;
};

namespace {

constexpr size_t kArgumentBytesMost = 4096;

struct State {
  std::vector<Call> calls, work;
  std::set<std::string> loaded;
  std::vector<std::string> loaded_in_captures;
  std::optional<uint64_t> fault;
  cudaError_t fault_error = cudaSuccess;
  uint64_t fallible = 0;
  bool has_failed = false;
};

State state;
bool executes = false;
cudaError_t last_error = cudaSuccess;
int multiprocessors = 132;
int memory_kilohertz = 2619000;
std::set<const void*> alive_things;

// The stream whose capture takes what this one is given; null: none does.
cudaStream_t capture_of(cudaStream_t stream) {
  if (stream == nullptr || stream->captured) return stream;
  return stream->origin;
}

void do_now(const Call& call) {
  state.work.push_back(call);
  if (!call.is_kernel || executes) call.run();
}

cudaError_t keep(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// A call of the runtime that can fail: what `body` returns, unless this call is to fail.
template <class Body>
cudaError_t runtime_call(const char* name, cudaStream_t stream, Body&& body) {
  const cudaError_t fault = begin_call(name, stream);
  return keep(fault != cudaSuccess ? fault : body());
}

// Copies and fills.
template <class Body>
cudaError_t memory_call(const char* name, cudaStream_t stream, Body&& body) {
  return runtime_call(name, stream, [&] {
    if (!can_take(stream)) return cudaErrorInvalidResourceHandle;
    give({.name = name, .stream = stream, .run = body});
    return cudaSuccess;
  });
}

}  // namespace

namespace fake_cuda {

bool can_take(cudaStream_t stream) { return stream == nullptr || is_alive(stream); }

void remember_alive(const void* thing) { alive_things.insert(thing); }
bool forget_alive(const void* thing) { return alive_things.erase(thing) != 0; }
bool is_alive(const void* thing) { return alive_things.contains(thing); }

cudaError_t begin_call(const char* name, cudaStream_t stream) {
  state.calls.push_back({.name = name, .stream = stream});
  if (state.fault != state.fallible++) return cudaSuccess;
  state.has_failed = true;
  return state.fault_error;
}
void note_call(const char* name) { state.calls.push_back({.name = name}); }

void give(Call call) {
  const cudaStream_t capture = capture_of(call.stream);
  const bool is_captured = capture != nullptr;
  if (call.stream != nullptr) call.stream->given += 1;
  if (call.is_kernel && state.loaded.insert(call.name).second && is_captured) {
    state.loaded_in_captures.push_back(call.name);
  }
  if (is_captured) {
    capture->captured->push_back(std::move(call));
  } else {
    do_now(call);
  }
}

const std::vector<Call>& calls() { return state.calls; }
const std::vector<Call>& work() { return state.work; }
const std::vector<std::string>& loaded_in_captures() { return state.loaded_in_captures; }
bool has_failed() { return state.has_failed; }
int alive() { return static_cast<int>(alive_things.size()); }
void set_executes(bool does) { executes = does; }
void set_multiprocessors(int count) { multiprocessors = count; }
void set_memory_kilohertz(int kilohertz) { memory_kilohertz = kilohertz; }
void leave_error(cudaError_t error) { last_error = error; }

std::vector<std::string> names_of(const std::vector<Call>& calls) {
  std::vector<std::string> names;
  for (const Call& call : calls) names.push_back(call.name);
  return names;
}

void reset() {
  state = {};
  last_error = cudaSuccess;
  forget_products();
}

void fail_at(uint64_t call, cudaError_t error) {
  state.fault = call;
  state.fault_error = error;
}

cudaError_t launch(const cudaLaunchConfig_t& config, Launch made) {
  const std::string name = name_of_kernel(made.kernel);
  const dim3 grid = config.gridDim, threads = config.blockDim;
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  const bool can_be = config.dynamicSmemBytes <= shared_bytes_most(made.kernel) && grid.x > 0 &&
                      grid.y > 0 && grid.z > 0 && grid.y <= 65535 && grid.z <= 65535 && count > 0 &&
                      count <= 1024 && made.arguments.size() <= kArgumentBytesMost &&
                      can_take(config.stream);
  return runtime_call(name.c_str(), config.stream, [&] {
    if (!can_be) return cudaErrorInvalidValue;
    give({.name = name,
          .stream = config.stream,
          .is_kernel = true,
          .arguments = std::move(made.arguments),
          .run = std::move(made.run)});
    return cudaSuccess;
  });
}

}  // namespace fake_cuda

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default: return "an error";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  return runtime_call("cudaGetDevice", nullptr, [&] {
    *device = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return runtime_call("cudaDeviceGetAttribute", nullptr, [&] {
    if (device != 0) return cudaErrorInvalidValue;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount: *value = multiprocessors; break;
      case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
      case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
      case cudaDevAttrClockRate: *value = 1830000; break;
      case cudaDevAttrMemoryClockRate: *value = memory_kilohertz; break;
      case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
      case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  state.loaded.insert(fake_cuda::name_of_kernel(function));
  *attributes = {};
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool is_to_host = kind == cudaMemcpyDeviceToHost;
  return memory_call(is_to_host ? "cudaMemcpyAsync to host" : "cudaMemcpyAsync", stream,
                     [=] { std::memcpy(to, from, count); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return runtime_call("cudaEventCreateWithFlags", nullptr, [&] {
    *event = make<CUevent_st>();
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return runtime_call("cudaEventRecord", stream, [&] {
    if (!is_alive(event) || !can_take(stream)) return cudaErrorInvalidResourceHandle;
    *event = {true, stream, capture_of(stream), stream == nullptr ? 0 : stream->given};
    return cudaSuccess;
  });
}

// The real one takes an event that was never recorded for one that has passed: an order lost.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return runtime_call("cudaStreamWaitEvent", stream, [&] {
    const bool is_known = is_alive(event) && can_take(stream);
    if (!is_known || !event->is_recorded) return cudaErrorInvalidResourceHandle;
    const cudaStream_t capture = event->capture;
    if (capture == nullptr) return cudaSuccess;
    if (stream == nullptr || !capture->captured) return cudaErrorStreamCaptureIsolation;
    if (capture_of(stream) == nullptr) {
      stream->origin = capture;
      capture->joined[stream] = UINT64_MAX;  // not yet
    } else if (stream == capture && event->stream != capture) {
      capture->joined[event->stream] = event->given;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return runtime_call("cudaEventSynchronize", nullptr, [&] {
    const bool is_known = is_alive(event) && event->is_recorded;
    return is_known ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  note_call("cudaEventDestroy");
  return keep(destroy(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned /*flags*/) {
  return runtime_call("cudaHostRegister", nullptr, [&] {
    constexpr uintptr_t kPage = 4096;
    const bool is_whole = reinterpret_cast<uintptr_t>(memory) % kPage == 0 && bytes % kPage == 0;
    if (!is_whole || is_alive(memory)) return cudaErrorInvalidValue;
    remember_alive(memory);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return runtime_call("cudaHostUnregister", nullptr,
                      [&] { return forget_alive(memory) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t count, cudaStream_t stream) {
  return memory_call("cudaMemsetAsync", stream, [=] { std::memset(to, value, count); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return runtime_call("cudaStreamCreateWithFlags", nullptr, [&] {
    *stream = make<CUstream_st>();
    return cudaSuccess;
  });
}

// Frees in any case, as the real one; so do the others that destroy.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  note_call("cudaStreamDestroy");
  return keep(destroy(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return runtime_call("cudaStreamSynchronize", stream, [&] {
    if (!can_take(stream)) return cudaErrorInvalidResourceHandle;
    if (stream == nullptr || !stream->captured) return cudaSuccess;
    stream->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  return runtime_call("cudaStreamBeginCapture", stream, [&] {
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
    if (!is_alive(stream) || stream->captured) return cudaErrorInvalidResourceHandle;
    stream->captured.emplace();
    stream->is_invalid = false;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return runtime_call("cudaStreamEndCapture", stream, [&] {
    *graph = nullptr;
    if (!is_alive(stream) || !stream->captured) return cudaErrorInvalidResourceHandle;
    std::vector<Call> nodes = *std::exchange(stream->captured, std::nullopt);
    bool are_joined = true;
    for (const auto& [branch, given] : std::exchange(stream->joined, {})) {
      are_joined = are_joined && branch->given == given;
      branch->origin = nullptr;
    }
    if (!are_joined) return cudaErrorStreamCaptureUnjoined;
    if (stream->is_invalid) return cudaErrorStreamCaptureInvalidated;
    *graph = make<CUgraph_st>();
    (*graph)->nodes = std::move(nodes);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return runtime_call("cudaStreamIsCapturing", stream, [&] {
    if (!can_take(stream)) return cudaErrorInvalidResourceHandle;
    *status = stream != nullptr && stream->captured ? cudaStreamCaptureStatusActive
                                                    : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  return runtime_call("cudaGraphInstantiate", nullptr, [&] {
    if (!is_alive(graph)) return cudaErrorInvalidValue;
    *executable = make<CUgraphExec_st>();
    (*executable)->nodes = graph->nodes;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return runtime_call("cudaGraphLaunch", stream, [&] {
    if (!is_alive(executable) || !can_take(stream)) return cudaErrorInvalidValue;
    for (const Call& node : executable->nodes) do_now(node);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  note_call("cudaGraphDestroy");
  return keep(destroy(graph) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  note_call("cudaGraphExecDestroy");
  return keep(destroy(executable) ? cudaSuccess : cudaErrorInvalidValue);
}

}  // extern "C"
