#pragma once

#include <filesystem>
#include <string>

#include <boost/test/unit_test.hpp>

#include <replay/replay.h>

namespace fs = std::filesystem;

// The recorded run in both formats, and how tests replay it.
inline const fs::path kTorch = fs::path(SHARDWISE_GOLDEN_DIR) / "lw_muon_bf16_torch_dp2";
inline const fs::path kTorchDist = fs::path(SHARDWISE_GOLDEN_DIR) / "lw_muon_bf16_torch_dist_dp2";

// A folder of its own for every test; gone at the end.
struct Workplace {
  fs::path folder =
      fs::temp_directory_path() /
      ("shardwise-replay-" + boost::unit_test::framework::current_test_case().p_name.get());
  Workplace() {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~Workplace() { fs::remove_all(folder); }
};

inline optim::ReplayOptions from_init(const fs::path& sample) {
  optim::ReplayOptions options;
  options.checkpoint = sample / "ckpt";
  options.gradients = sample / "expected";
  options.from_init = true;
  return options;
}

inline const optim::ComparedKind& kind_of(const optim::ReplayReport& report,
                                          const std::string& kind) {
  for (const optim::ComparedKind& compared : report.compared) {
    if (compared.kind == kind) return compared;
  }
  BOOST_FAIL("nothing was compared of the kind " << kind);
  return report.compared.front();
}
