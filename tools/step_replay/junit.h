#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

// JUnit's XML, as continuous integration reads it.
namespace tools::step_replay {

struct JunitCase {
  std::string name;
  std::string failure = {};  // one line; empty: it passed
  std::string details = {};  // of a failure
};
struct JunitSuite {
  std::string name;
  std::vector<JunitCase> cases;
};

// One document. Names are escaped; what XML cannot hold stands as ckpt::escaped() writes it.
std::string junit_text(const JunitSuite& suite);

inline void declare_junit(CLI::App& app, std::string& file) {
  app.add_option("--junit", file, "Write the outcome as JUnit's XML, for continuous integration")
      ->option_text("FILE");
}

}  // namespace tools::step_replay
