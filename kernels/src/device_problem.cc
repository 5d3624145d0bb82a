#include <kernels/multi_tensor_update.h>
#include <kernels/symmetric_plan.h>

#include "call_status.h"
#include "device_problem.h"

namespace kernels {
namespace {

constexpr size_t kBlasMajor = 10000;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

DeviceFacts ask_device() {
  DeviceFacts facts;
  facts.runtime_version = CUDART_VERSION;
  facts.blas_version = cublasLtGetVersion();
  cudaDriverGetVersion(&facts.driver_version);
  facts.count_error = cudaGetDeviceCount(&facts.devices);
  if (facts.count_error != cudaSuccess || facts.devices == 0) return facts;
  facts.image_error = has_kernel_image();
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&facts.major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&facts.minor, cudaDevAttrComputeCapabilityMinor, device);
  return facts;
}

}  // namespace

DeviceFacts device_facts() {
  const DeviceFacts facts = ask_device();
  (void)cudaGetLastError();  // whoever asks CUDA next must not find our error
  return facts;
}

std::string problem_of(const DeviceFacts& facts) {
  if (facts.count_error == cudaErrorInsufficientDriver) {
    if (facts.driver_version == 0) return "there is no NVIDIA driver";
    return "the NVIDIA driver is too old: it knows CUDA " + version_text(facts.driver_version) +
           ", not " + version_text(facts.runtime_version);
  }
  if (facts.count_error == cudaErrorNoDevice) return "there is no GPU";
  if (facts.count_error != cudaSuccess) return cudaGetErrorString(facts.count_error);
  if (facts.devices == 0) return "there is no GPU";
  if (facts.image_error == cudaErrorNoKernelImageForDevice ||
      facts.image_error == cudaErrorInvalidDeviceFunction) {
    return "no kernel is compiled for this GPU's architecture, sm_" + std::to_string(facts.major) +
           std::to_string(facts.minor);
  }
  if (facts.image_error != cudaSuccess) return cudaGetErrorString(facts.image_error);
  if (facts.blas_version / kBlasMajor != CUBLAS_VERSION / kBlasMajor) {
    return "the cuBLASLt that is loaded is version " +
           std::to_string(facts.blas_version / kBlasMajor) + ", these kernels need " +
           std::to_string(CUBLAS_VERSION / kBlasMajor);
  }
  return "";
}

cudaError_t device_rates(DeviceRates* rates) {
  int device = 0, kilohertz = 0, memory_kilohertz = 0, bus_bits = 0, cache_bytes = 0;
  Status status;
  status.then([&] { return cudaGetDevice(&device); });
  const auto ask = [&](int* value, cudaDeviceAttr attribute) {
    status.then([&] { return cudaDeviceGetAttribute(value, attribute, device); });
  };
  ask(&rates->multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(&rates->major, cudaDevAttrComputeCapabilityMajor);
  ask(&rates->minor, cudaDevAttrComputeCapabilityMinor);
  ask(&kilohertz, cudaDevAttrClockRate);
  ask(&memory_kilohertz, cudaDevAttrMemoryClockRate);
  ask(&bus_bits, cudaDevAttrGlobalMemoryBusWidth);
  ask(&cache_bytes, cudaDevAttrL2CacheSize);
  // Where a device does not say, an H100's stay.
  if (kilohertz > 0) rates->cycles_per_second = 1e3 * kilohertz;
  if (memory_kilohertz > 0 && bus_bits > 0) {
    rates->bytes_per_second = 2e3 * memory_kilohertz * (bus_bits / 8);  // both edges of the clock
  }
  if (cache_bytes > 0) rates->cache_bytes = cache_bytes;
  return status.get();
}

}  // namespace kernels
