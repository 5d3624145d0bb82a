// The semantic fuzzer in one process, through the library: semantic_in_process KIND SEED COUNT
// makes the cases of the seeds SEED to SEED + COUNT - 1 (KIND: state_dict or layer_wise). Prints a
// line for each fault with its seed, and how many conversions published and refused. Exit 1 where
// there is a fault, or where less than a tenth was published.
#include <exception>
#include <iostream>

#include <ckpt/error.h>

#include "io/system_calls.h"
#include "semantic/in_process_cases.h"
#include "support/temporary_folder.h"

namespace {

using RunCase = semantic::CaseResult(uint64_t, const std::filesystem::path&);

// The real calls, without waiting for the device.
class NoDevice final : public ckpt::SystemCalls {
 public:
  int fsync(int) override { return 0; }
  int posix_fadvise(int, off_t, off_t, int) override { return 0; }
};

struct Totals {
  uint64_t cases = 0, faulty_cases = 0, published = 0, refused = 0;
};

void run(RunCase* run_case, uint64_t seed, Totals& totals) {
  const test::TemporaryFolder folder;
  semantic::CaseResult result;
  try {
    result = run_case(seed, folder.path());
  } catch (const std::exception& error) {
    result.faults.push_back(std::string("an exception: ") + error.what());
  }
  for (const std::string& fault : result.faults) {
    std::cout << "seed " << seed << ": " << ckpt::escaped(fault) << "\n";
  }
  ++totals.cases;
  totals.faulty_cases += result.faults.empty() ? 0 : 1;
  totals.published += result.published;
  totals.refused += result.refused;
}

RunCase* named(const std::string& kind) {
  if (kind == "state_dict") return semantic::run_state_dict_case;
  return kind == "layer_wise" ? semantic::run_layer_wise_case : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  RunCase* const run_case = argc == 4 ? named(argv[1]) : nullptr;
  if (run_case == nullptr) {
    std::cerr << "usage: semantic_in_process state_dict|layer_wise SEED COUNT\n";
    return 2;
  }
  NoDevice calls;
  const ckpt::InstalledSystemCalls installed(calls);
  const uint64_t first = std::stoull(argv[2]), count = std::stoull(argv[3]);
  Totals totals;
  for (uint64_t seed = first; seed < first + count; ++seed) run(run_case, seed, totals);
  std::cout << totals.cases << " cases, " << totals.published << " conversions published, "
            << totals.refused << " refused, " << totals.faulty_cases << " cases with faults\n";
  const bool proves = totals.published * 10 >= totals.published + totals.refused;
  return totals.faulty_cases == 0 && proves ? 0 : 1;
}
