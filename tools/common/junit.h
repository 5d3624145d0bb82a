#pragma once

#include <functional>
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

// Runs a command whose outcome goes to `file`, too; empty: nowhere. What it throws is a case that
// failed: no file of an earlier run stays. Throws as refuse_output() of `source`, and what `run`
// throws; returns what it returns.
struct JunitTarget {
  std::string file, suite, source;
};
int with_junit(const JunitTarget& target,
               const std::function<int(std::vector<JunitCase>& cases)>& run);

}  // namespace tools
