#include <kernels/symmetric_plan.h>

#include "call_status.h"

namespace kernels {

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
