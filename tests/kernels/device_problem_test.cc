#include "device_problem.h"

#include <string>

#include <boost/test/unit_test.hpp>

#include <kernels/device_step.h>

using kernels::DeviceFacts;
using kernels::problem_of;

BOOST_AUTO_TEST_SUITE(device_problem)

BOOST_AUTO_TEST_CASE(every_reason_against_a_gpu_is_one_line) {
  struct Row {
    DeviceFacts facts;
    std::string problem;
  };
  const Row rows[] = {
      {{.count_error = cudaErrorInsufficientDriver}, "there is no NVIDIA driver"},
      {{.count_error = cudaErrorInsufficientDriver,
        .driver_version = 12040,
        .runtime_version = 13000},
       "the NVIDIA driver is too old: it knows CUDA 12.4, not 13.0"},
      {{.count_error = cudaErrorNoDevice}, "there is no GPU"},
      {{.devices = 0}, "there is no GPU"},
      {{.count_error = cudaErrorSystemNotReady}, "system not yet initialized"},
      {{.devices = 1, .image_error = cudaErrorNoKernelImageForDevice, .major = 7, .minor = 5},
       "no kernel is compiled for this GPU's architecture, sm_75"},
      {{.devices = 1, .image_error = cudaErrorInvalidDeviceFunction, .major = 12, .minor = 0},
       "no kernel is compiled for this GPU's architecture, sm_120"},
      {{.devices = 1, .image_error = cudaErrorMemoryAllocation}, "out of memory"},
      {{.devices = 1}, ""},
  };
  for (const Row& row : rows) BOOST_TEST(problem_of(row.facts) == row.problem);
}

BOOST_AUTO_TEST_CASE(this_machine_has_a_gpu_or_one_line_against_it) {
  const std::string problem = problem_of(kernels::device_facts());
  const char* const said = kernels::device_api().problem();
  BOOST_TEST(problem == (said == nullptr ? "" : said));
  BOOST_TEST(problem.find('\n') == std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
