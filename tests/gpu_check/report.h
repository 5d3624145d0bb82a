#pragma once

#include <iostream>
#include <stdexcept>
#include <string>

#include <cuda_runtime_api.h>

namespace gpu_check {

// Throws with what failed; the check that called it counts as failed.
inline void require(int status, const std::string& what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(what + ": " + cudaGetErrorString(static_cast<cudaError_t>(status)));
  }
}

// Runs checks one by one and counts.
class Report {
 public:
  template <class Check>
  void run(const std::string& name, Check&& check) {
    std::string problem;
    try {
      problem = check();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    (problem.empty() ? passed_ : failed_) += 1;
    std::cout << (problem.empty() ? "ok    " : "FAIL  ") << name
              << (problem.empty() ? "" : ": " + problem) << "\n"
              << std::flush;  // who is stopped in the middle has said how far it came
  }
  int failed() const { return failed_; }
  int passed() const { return passed_; }

 private:
  int passed_ = 0, failed_ = 0;
};

}  // namespace gpu_check
