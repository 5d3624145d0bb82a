#include <common/junit.h>

#include <algorithm>

#include <CLI/CLI.hpp>

#include <ckpt/error.h>
#include <common/option_values.h>
#include <common/whole_file.h>

namespace tools {
namespace {

// As the value of an attribute, or as text between tags. Line ends and apostrophes stay.
std::string xml(const std::string& text) {
  constexpr const char* kKept = "\n'";
  std::string made;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(kKept, begin), text.size());
    for (const char c : ckpt::escaped(text.substr(begin, end - begin))) {
      switch (c) {
        case '&': made += "&amp;"; break;
        case '<': made += "&lt;"; break;
        case '>': made += "&gt;"; break;
        case '"': made += "&quot;"; break;
        default: made += c;
      }
    }
    if (end < text.size()) made += text[end];
    begin = end + 1;
  }
  return made;
}

std::string attribute(const std::string& name, const std::string& value) {
  return " " + name + "=\"" + xml(value) + "\"";
}

std::string case_text(const JunitSuite& suite, const JunitCase& one) {
  const std::string start =
      "    <testcase" + attribute("classname", suite.name) + attribute("name", one.name);
  if (one.failure.empty()) return start + "/>\n";
  return start + ">\n      <failure" + attribute("message", one.failure) + ">" + xml(one.details) +
         "</failure>\n    </testcase>\n";
}

}  // namespace

std::string junit_text(const JunitSuite& suite) {
  const auto failures =
      std::ranges::count_if(suite.cases, [](const JunitCase& one) { return !one.failure.empty(); });
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite" +
      attribute("name", suite.name) + attribute("tests", std::to_string(suite.cases.size())) +
      attribute("failures", std::to_string(failures)) + attribute("errors", "0") + ">\n";
  for (const JunitCase& one : suite.cases) text += case_text(suite, one);
  return text + "  </testsuite>\n</testsuites>\n";
}

int with_junit(const JunitTarget& target,
               const std::function<int(std::vector<JunitCase>& cases)>& run) {
  std::vector<JunitCase> cases;
  if (target.file.empty()) return run(cases);
  refuse_output(target.file, target.source);
  const auto write = [&] {
    write_whole_file(target.file, junit_text({target.suite, cases}), true);
  };
  try {
    const int code = run(cases);
    write();
    return code;
  } catch (const ckpt::Error& error) {
    cases = {{.name = target.source, .failure = error.what()}};
    write();
    throw;
  }
}

void declare_junit(CLI::App& app, std::string& file) {
  add_value(app, "--junit FILE", file,
            "Write the outcome as JUnit's XML, for continuous integration");
}

}  // namespace tools
