#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cuda_runtime_api.h>
#include <kernels/multi_tensor_adam.h>

#include "kernels/adam_twin.h"

namespace {

using kernels::AdamConfig;
using kernels::AdamTensor;

constexpr AdamConfig kConfig{
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3};

// Parameter, gradient and both moments of one tensor, in one allocation: param, grad, m, v.
std::vector<float> random_state(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(4 * static_cast<size_t>(count));
  for (float& value : state) value = normal(random);
  for (int64_t i = 3 * count; i < 4 * count; ++i) state[i] *= state[i];  // v is never negative
  return state;
}

AdamTensor tensor_at(float* state, int64_t count) {
  return {.param = state,
          .grad = state + count,
          .exp_avg = state + 2 * count,
          .exp_avg_sq = state + 3 * count,
          .count = count};
}

std::string why_no_gpu() {
  int device_count = 0;
  const cudaError_t error = cudaGetDeviceCount(&device_count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return device_count == 0 ? "no device" : "";
}

struct DeviceFree {
  void operator()(float* pointer) const { cudaFree(pointer); }
};
using DeviceFloats = std::unique_ptr<float, DeviceFree>;

// Device memory whose first float lies `skew` floats behind a 16-byte boundary.
DeviceFloats to_device(const std::vector<float>& host, int64_t skew) {
  void* memory = nullptr;
  BOOST_REQUIRE_EQUAL(cudaMalloc(&memory, (host.size() + skew) * sizeof(float)), cudaSuccess);
  DeviceFloats owner(static_cast<float*>(memory));
  BOOST_REQUIRE_EQUAL(cudaMemcpy(owner.get() + skew, host.data(), host.size() * sizeof(float),
                                 cudaMemcpyHostToDevice),
                      cudaSuccess);
  return owner;
}

struct Case {
  const char* name;
  std::vector<int64_t> counts;
  int64_t skew;  // floats by which the tensors miss 16-byte alignment
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"one element", {1}, 0},
    {"a whole chunk", {65536}, 0},
    {"a chunk and a tail", {65536 + 3}, 0},
    {"not aligned to 16 bytes", {4096}, 1},
    {"empty tensors between others", {0, 5, 0, 0, 1000, 0}, 0},
    {"more tensors than one launch takes", std::vector<int64_t>(200, 77), 0},
    {"several chunks and odd sizes", {200001, 3, 131072, 999}, 2},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(multi_tensor_adam)

BOOST_AUTO_TEST_CASE(twin_follows_the_formula_in_double) {
  constexpr int64_t kCount = 1000;
  const std::vector<float> before = random_state(kCount, 1);
  std::vector<float> after = before;
  kernels::adam_twin(tensor_at(after.data(), kCount), kConfig);
  for (int64_t i = 0; i < kCount; ++i) {
    const double grad = before[kCount + i];
    const double m = kConfig.beta1 * before[2 * kCount + i] + (1 - kConfig.beta1) * grad;
    const double v = kConfig.beta2 * before[3 * kCount + i] + (1 - kConfig.beta2) * grad * grad;
    const double m_hat = m / (1 - std::pow(kConfig.beta1, 3));
    const double v_hat = v / (1 - std::pow(kConfig.beta2, 3));
    const double p = before[i] * (1 - kConfig.lr * kConfig.weight_decay) -
                     kConfig.lr * m_hat / (std::sqrt(v_hat) + kConfig.eps);
    BOOST_TEST(std::abs(after[2 * kCount + i] - m) < 1e-6);
    BOOST_TEST(std::abs(after[3 * kCount + i] - v) < 1e-5 * (1 + v));
    BOOST_TEST(std::abs(after[i] - p) < 1e-6 * (1 + std::abs(p)));
  }
}

BOOST_DATA_TEST_CASE(device_equals_twin_bit_for_bit, boost::unit_test::data::make(kCases)) {
  if (const std::string reason = why_no_gpu(); !reason.empty()) {
    std::cout << "SKIP: needs a GPU: " << reason << "\n";
    return;
  }
  std::vector<std::vector<float>> expected;
  std::vector<DeviceFloats> memory;
  std::vector<AdamTensor> tensors;
  for (const int64_t count : sample.counts) {
    expected.push_back(random_state(count, static_cast<unsigned>(expected.size())));
    memory.push_back(to_device(expected.back(), sample.skew));
    tensors.push_back(tensor_at(memory.back().get() + sample.skew, count));
    kernels::adam_twin(tensor_at(expected.back().data(), count), kConfig);
  }
  BOOST_REQUIRE_EQUAL(kernels::multi_tensor_adam(tensors.data(), static_cast<int>(tensors.size()),
                                                 kConfig, nullptr),
                      cudaSuccess);
  BOOST_REQUIRE_EQUAL(cudaDeviceSynchronize(), cudaSuccess);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<float> found(expected[i].size());
    const size_t bytes = found.size() * sizeof(float);
    BOOST_REQUIRE_EQUAL(cudaMemcpy(found.data(), tensors[i].param, bytes, cudaMemcpyDeviceToHost),
                        cudaSuccess);
    BOOST_TEST(std::memcmp(found.data(), expected[i].data(), bytes) == 0, "tensor " << i);
  }
}

BOOST_AUTO_TEST_CASE(nothing_to_update_launches_nothing) {
  BOOST_TEST(kernels::multi_tensor_adam(nullptr, 0, kConfig, nullptr) == cudaSuccess);
  const AdamTensor empty{};
  BOOST_TEST(kernels::multi_tensor_adam(&empty, 1, kConfig, nullptr) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(senseless_requests_are_refused) {
  AdamConfig before_the_first = kConfig;
  before_the_first.step = 0;
  AdamTensor negative{};
  negative.count = -1;
  BOOST_TEST(kernels::multi_tensor_adam(nullptr, 0, before_the_first, nullptr) ==
             cudaErrorInvalidValue);
  BOOST_TEST(kernels::multi_tensor_adam(nullptr, -1, kConfig, nullptr) == cudaErrorInvalidValue);
  BOOST_TEST(kernels::multi_tensor_adam(&negative, 1, kConfig, nullptr) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_SUITE_END()
