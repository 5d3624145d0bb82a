#include <kernels/device_step.h>

extern "C" __attribute__((visibility("default"))) const kernels::DeviceApi& shardwise_device_api() {
  return kernels::device_api();
}
