#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tools {

// JUnit's XML, as continuous integration reads it.
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

// --junit FILE
void declare_junit(CLI::App& app, std::string& file);

}  // namespace tools
