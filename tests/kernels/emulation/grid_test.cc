// The emulation itself: it finds what it is there to find.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

namespace {

using emulation::Order;

constexpr Order kOrders[] = {Order::Forward, Order::Backward, Order::Shuffled, Order::Striped};

// Each thread writes its number and reads its neighbour's, turn after turn.
template <bool kBefore, bool kAfter>
void pass_on(int* results, int turns) {
  __shared__ int numbers[64];
  for (int turn = 0; turn < turns; ++turn) {
    numbers[threadIdx.x] = static_cast<int>(threadIdx.x) + 100 * turn;
    if (kBefore) __syncthreads();
    results[turn * 64 + static_cast<int>(threadIdx.x)] = numbers[(threadIdx.x + 1) % 64];
    if (kAfter) __syncthreads();
  }
}

template <class... Parameters>
std::string run(void (*kernel)(Parameters...), unsigned threads, Parameters... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = threads;
  try {
    return cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess ? "" : "refused";
  } catch (const std::logic_error& error) {
    return error.what();
  }
}

int wrong_results(void (*kernel)(int*, int)) {
  int wrong = 0;
  for (const Order order : kOrders) {
    emulation::set_order(order, 1);
    std::vector<int> results(64 * 3);
    run(kernel, 64, results.data(), 3);
    for (int i = 0; i < 64 * 3; ++i) {
      wrong += results[static_cast<size_t>(i)] != (i + 1) % 64 + i / 64 * 100 ? 1 : 0;
    }
  }
  return wrong;
}

void end_early(int* results, int) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  *results = 1;
}

void part_ways(int* results, int) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  *results = 1;
}

void leave_the_warp(int* results, int) {
  if (threadIdx.x == 3) return;
  *results = __shfl_down_sync(0xFFFFFFFFU, 1, 1);
}

void sum_of_warp(int* results, int) {
  int sum = static_cast<int>(threadIdx.x);
  for (unsigned width = 16; width > 0; width /= 2) {
    sum += __shfl_down_sync(0xFFFFFFFFU, sum, width);
  }
  if (threadIdx.x % 32 == 0) results[threadIdx.x / 32] = sum;
  results[2 + static_cast<int>(threadIdx.x)] =
      static_cast<int>(__reduce_max_sync(0xFFFFFFFFU, threadIdx.x));
}

void load_from(int* memory, int) {
  memory[0] = static_cast<int>(__ldcs(reinterpret_cast<const uint4*>(memory + 1)).x);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(grid)

BOOST_AUTO_TEST_CASE(missing_barriers_show) {
  BOOST_TEST(wrong_results(pass_on<true, true>) == 0);
  BOOST_TEST(wrong_results(pass_on<false, true>) > 0);
  BOOST_TEST(wrong_results(pass_on<true, false>) > 0);
}

BOOST_AUTO_TEST_CASE(warps_exchange_whatever_the_order) {
  for (const Order order : kOrders) {
    emulation::set_order(order, 2);
    std::vector<int> results(66);
    BOOST_TEST(run(sum_of_warp, 64, results.data(), 0) == "");
    BOOST_TEST(results[0] == 31 * 32 / 2);
    BOOST_TEST(results[1] == 31 * 32 / 2 + 32 * 32);
    BOOST_TEST(results[2] == 31);
    BOOST_TEST(results[65] == 63);
  }
}

BOOST_AUTO_TEST_CASE(what_hangs_on_a_gpu_is_told) {
  alignas(16) int memory[8] = {};
  const auto says = [&](void (*kernel)(int*, int), const std::string& words) {
    const std::string found = run(kernel, 64, +memory, 0);
    BOOST_TEST(found.find(words) != std::string::npos, found);
  };
  says(end_early, "has ended");
  says(part_ways, "threads wait for others that do not come");
  says(leave_the_warp, "waits for its warp");
  says(load_from, "not aligned");
  BOOST_TEST(run(sum_of_warp, 40, +memory, 0) == "an exchange within a warp that is not full");
  BOOST_TEST(run(sum_of_warp, 2000, +memory, 0) == "refused");
}

BOOST_AUTO_TEST_SUITE_END()
