// The models of Hopper's instructions: what they say of layouts, and that they notice what is
// undefined or too early.
#include <cuda_runtime.h>
#include <sm90.cuh>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/emulation/narrow_floats.h"
#include "kernels/emulation/tensor_map.h"

namespace {

constexpr uint32_t kBox = 64, kBoxBytes = kBox * kBox * 2;

struct TestMap {
  CUtensorMap map = {};
  explicit TestMap(const std::vector<uint16_t>& memory, uint64_t inner, uint64_t outer) {
    const cuuint64_t lengths[] = {inner, outer, 1}, strides[] = {2 * inner, 2 * inner * outer};
    const cuuint32_t box[] = {kBox, kBox, 1}, steps[] = {1, 1, 1};
    BOOST_TEST(cuTensorMapEncodeTiled(
                   &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<uint16_t*>(memory.data()),
                   lengths, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  }
};

// A matrix descriptor.
uint64_t encoded(uint32_t address, uint32_t leading, uint32_t stride) {
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFF) >> 4); };
  return uint64_t{1} << 62 | field(stride) << 32 | field(leading) << 16 | field(address);
}

uint32_t rounded_up(uint32_t address) { return (address + 1023) / 1024 * 1024; }

struct Request {
  const CUtensorMap* map;
  uint16_t* out;
  float* sums;
  int kind;
};

// Loads one box, and shows what an operand finds at (row, k).
void load_and_look(Request r) {
  const uint32_t first = rounded_up(sm90::shared_address(sm90::dynamic_shared()));
  const uint32_t barrier = first + kBoxBytes;
  char* const memory =
      sm90::dynamic_shared() + (first - sm90::shared_address(sm90::dynamic_shared()));
  if (threadIdx.x == 0) {
    sm90::barrier_init(barrier, 1);
    sm90::barrier_init_fence();
    sm90::barrier_arrive_expect(barrier, kBoxBytes);
    sm90::load_tile(first, r.map, barrier, {-8, 16, 0});
  }
  __syncthreads();
  sm90::barrier_wait(barrier, 0);
  if (threadIdx.x != 0) return;
  for (uint32_t row = 0; row < kBox; ++row) {
    for (uint32_t k = 0; k < kBox; ++k) {
      const bool has_columns = r.kind == 1;
      const uint32_t begin = k / 16 * (has_columns ? 16 * 128 : 32);
      const uint64_t operand = encoded(first + begin, kBoxBytes, 1024);
      const uint32_t at = emulation::operand_address(operand, has_columns, row, k % 16);
      std::memcpy(r.out + row * kBox + k, memory + (at - first), 2);
    }
  }
}

// Undefined in one way each.
void do_wrong(Request r) {
  const uint32_t first = rounded_up(sm90::shared_address(sm90::dynamic_shared()));
  const uint32_t barrier = first + 2 * kBoxBytes;
  const uint64_t a = encoded(first, kBoxBytes, 1024);
  sm90::Sums sums = {};
  if (threadIdx.x == 0) {
    if (r.kind != 0) sm90::barrier_init(barrier, 1);
    if (r.kind != 1) sm90::barrier_init_fence();
    if (r.kind == 2) sm90::barrier_init(barrier, 1);
    sm90::barrier_arrive_expect(barrier, r.kind == 3 ? kBoxBytes + 16 : kBoxBytes);
    if (r.kind == 4) sm90::barrier_arrive(barrier);
    sm90::load_tile(r.kind == 5   ? first + 64
                    : r.kind == 6 ? first + 64 * kBoxBytes
                                  : first,
                    r.map, barrier, {0, 0, 0});
  }
  __syncthreads();
  if (r.kind == 7) return;
  sm90::barrier_wait(barrier, 0);
  if (r.kind != 8) sm90::products_fence();
  const uint64_t operand = r.kind == 9    ? a + (threadIdx.x == 77 ? 2 : 0)
                           : r.kind == 10 ? a + (256 >> 4)
                           : r.kind == 11 ? a ^ uint64_t { 1 } << 63
                                          : a;
  if (r.kind != 12 || threadIdx.x != 5) sm90::multiply<false>(sums, operand, a, false);
  sm90::products_commit();
  if (r.kind == 13) return;
  if (r.kind == 14) {
    sm90::products_wait<1>();
    r.sums[threadIdx.x] = sums.at[0];
  }
  sm90::products_wait<0>();
  if (r.kind != 14) r.sums[threadIdx.x] = sums.at[0];
  if (r.kind == 15) sm90::multiply<false>(sums, a, a, true);  // sums were read: a fence is due
}

std::string run(void (*kernel)(Request), const Request& request) {
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 128;
  config.dynamicSmemBytes = 32 << 10;
  emulation::set_order(emulation::Order::Forward, 1);
  try {
    return cudaLaunchKernelEx(&config, kernel, request) == cudaSuccess ? "" : "refused";
  } catch (const std::logic_error& error) {
    return error.what();
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sm90_models)

// A box that begins outside of the tensor: zeros there, and every element where an operand of its
// rows, or of its columns, looks for it.
BOOST_AUTO_TEST_CASE(operands_find_what_loads_have_placed) {
  constexpr uint64_t kInner = 40, kOuter = 50;
  std::vector<uint16_t> memory(kInner * kOuter);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint16_t>(i + 1);
  const TestMap map(memory, kInner, kOuter);
  for (const int kind : {0, 1}) {
    std::vector<uint16_t> found(kBox * kBox, 0xFFFF);
    BOOST_TEST(run(load_and_look, {&map.map, found.data(), nullptr, kind}) == "");
    int wrong = 0;
    for (int64_t row = 0; row < kBox; ++row) {
      for (int64_t k = 0; k < kBox; ++k) {
        const int64_t x = (kind == 0 ? k : row) - 8, y = (kind == 0 ? row : k) + 16;
        const bool is_inside =
            x >= 0 && x < static_cast<int64_t>(kInner) && y < static_cast<int64_t>(kOuter);
        const int64_t wanted = is_inside ? y * static_cast<int64_t>(kInner) + x + 1 : 0;
        wrong += found[static_cast<size_t>(row * kBox + k)] != wanted ? 1 : 0;
      }
    }
    BOOST_TEST(wrong == 0);
  }
}

// Lines of 128 bytes whose groups of 16 are exchanged by the line's number, as the tables of the
// driver's reference and of the PTX ISA draw it.
BOOST_AUTO_TEST_CASE(swizzles_exchange_groups_of_16_bytes_by_the_line) {
  const uint64_t operand = encoded(2048, 0, 1024);
  for (unsigned line = 0; line < 8; ++line) {
    for (unsigned group = 0; group < 2; ++group) {
      BOOST_TEST(emulation::operand_address(operand, false, line, 8 * group) ==
                 2048 + 128 * line + 16 * (group ^ line));
    }
  }
  BOOST_TEST(emulation::operand_address(operand, false, 9, 0) == 2048 + 1024 + 128 + 16);
}

BOOST_AUTO_TEST_CASE(every_sum_is_one_threads) {
  std::set<std::pair<unsigned, unsigned>> seen;
  for (unsigned thread = 0; thread < 128; ++thread) {
    for (unsigned sum = 0; sum < emulation::kSumsPerThread; ++sum) {
      const emulation::SumPlace place = emulation::place_of_sum(thread, sum);
      BOOST_REQUIRE(place.row < 64 && place.column < 128);
      BOOST_REQUIRE(place.row / 16 == thread / 32);  // a warp has 16 rows
      seen.emplace(place.row, place.column);
    }
  }
  BOOST_TEST(seen.size() == 64U * 128);
}

BOOST_AUTO_TEST_CASE(what_is_undefined_is_told) {
  const std::vector<uint16_t> memory(kBox * kBox, 0x3F80);  // ones
  const TestMap map(memory, kBox, kBox);
  std::vector<float> sums(128);
  const auto says = [&](int kind, const std::string& words) {
    const std::string found = run(do_wrong, {&map.map, nullptr, sums.data(), kind});
    BOOST_TEST(found.find(words) != std::string::npos, kind << ": " << found);
  };
  says(0, "a barrier that was not initialised");
  says(1, "a barrier without its fence");
  says(2, "a barrier is initialised twice");
  says(3, "waits for a phase");
  says(4, "more arrivals at a barrier");
  says(5, "a tile is not placed as it must be");
  says(6, "an address outside of shared memory");
  says(7, "a block ends while a load is on its way");
  says(8, "a product without a fence");
  says(9, "threads of a warpgroup queue different products");
  says(10, "an operand begins in the middle of its pattern");
  says(11, "not such an operand");
  says(12, "threads of a warpgroup queue different products");
  says(13, "a thread ends before its products");
  says(15, "a product without a fence");
}

BOOST_AUTO_TEST_CASE(sums_are_no_numbers_before_they_are_waited_for) {
  const std::vector<uint16_t> memory(kBox * kBox, 0x3F80);
  const TestMap map(memory, kBox, kBox);
  std::vector<float> sums(128);
  BOOST_TEST(run(do_wrong, {&map.map, nullptr, sums.data(), 14}) == "");
  BOOST_TEST(std::isnan(sums[3]));
}

BOOST_AUTO_TEST_CASE(maps_that_the_driver_refuses_are_refused) {
  alignas(16) uint16_t memory[64] = {};
  const auto made = [&](const void* at, cuuint64_t stride, cuuint32_t box) {
    CUtensorMap map;
    const cuuint64_t lengths[] = {8, 4, 1}, strides[] = {stride, 4 * stride};
    const cuuint32_t boxes[] = {box, 4, 1}, steps[] = {1, 1, 1};
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(at),
                                  lengths, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  BOOST_TEST(made(memory, 16, 8));
  BOOST_TEST(!made(memory + 4, 16, 8));
  BOOST_TEST(!made(memory, 24, 8));
  BOOST_TEST(!made(memory, 0, 8));
  BOOST_TEST(!made(memory, 16, 4));
  BOOST_TEST(!made(memory, 16, 128));
}

BOOST_AUTO_TEST_SUITE_END()
