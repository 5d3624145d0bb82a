#include "common/run_tool.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <new>
#include <ostream>
#include <system_error>

#include <ckpt/error.h>
#include <CLI/CLI.hpp>

namespace {

// A command that throws what its argument names.
struct FailOptions {
  std::string what;
  void declare(CLI::App& app) { app.add_option("WHAT", what)->required(); }
};

int fail(const FailOptions& options, tools::Console&) {
  using ckpt::ErrorCode;
  const auto throw_error = [](ErrorCode code) {
    throw ckpt::Error(code, {"f", 1, "k"}, "is wrong");
  };
  if (options.what == "argument") throw_error(ErrorCode::InvalidArgument);
  if (options.what == "corrupt") throw_error(ErrorCode::Corrupt);
  if (options.what == "unsupported") throw_error(ErrorCode::Unsupported);
  if (options.what == "not_found") throw_error(ErrorCode::NotFound);
  if (options.what == "exists") throw_error(ErrorCode::AlreadyExists);
  if (options.what == "io") throw_error(ErrorCode::IoFailure);
  if (options.what == "system") throw std::system_error(ENOSPC, std::generic_category());
  if (options.what == "memory") throw std::bad_alloc();
  if (options.what == "thread") throw std::system_error(EAGAIN, std::generic_category());
  if (options.what == "bug") throw std::logic_error("unexpected");
  if (options.what == "number") throw 1;
  return options.what == "different" ? 1 : 0;
}

int run(std::vector<std::string> words) {
  words.insert(words.begin(), "tool");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  const tools::ToolInfo nameless = {"", "Fails.", {}};
  return tools::run_commands({"tool", "Fails.", {}}, static_cast<int>(arguments.size()),
                             arguments.data(), {tools::make_command<FailOptions>(nameless, fail)});
}

struct Row {
  std::vector<std::string> words;
  int exit_code;
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  for (const std::string& word : row.words) out << word << ' ';
  return out;
}

const Row kRows[] = {
    {{"equal"}, 0},
    {{"different"}, 1},
    {{"argument"}, 2},
    {{}, 2},
    {{"a", "b"}, 2},
    {{""}, 0},  // an empty word is an argument
    {{"--no-such-option", "a"}, 2},
    {{"a", "-j", "-1"}, 2},
    {{"a", "--color", "purple"}, 2},
    {{"corrupt"}, 3},
    {{"corrupt", "--json"}, 3},
    {{"unsupported"}, 4},
    {{"not_found"}, 5},
    {{"exists"}, 5},
    {{"io"}, 5},
    {{"system"}, 5},
    {{"memory"}, 5},
    {{"memory", "--json"}, 5},
    {{"thread"}, 5},
    {{"bug"}, 70},
    {{"number"}, 70},
    {{"--help"}, 0},
    {{"--version"}, 0},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(run_tool)

BOOST_DATA_TEST_CASE(exit_codes_are_those_of_the_contract, kRows) {
  BOOST_TEST(run(sample.words) == sample.exit_code);
}

BOOST_AUTO_TEST_SUITE_END()
