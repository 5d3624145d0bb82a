// What a new command takes: one file like this, and a row in the list that its program gives to
// run_commands(). Options of every command, help, JSON, errors and exit codes are there already.
#include <boost/test/unit_test.hpp>
#include <iostream>
#include <ostream>
#include <sstream>

#include <common/json.h>
#include <common/run_tool.h>
#include <common/source_options.h>
#include <common/text.h>
#include <CLI/CLI.hpp>

namespace {

// --- the command ---

using tools::Command;
using tools::Console;

struct CountOptions {
  tools::SourceOptions source;
  std::string dtype;
  void declare(CLI::App& app) {
    source.declare(app);
    app.add_option("--dtype", dtype, "Only tensors of this type")->option_text("NAME");
  }
};

int count(const CountOptions& options, Console& console) {
  const optim::OpenedTraining checkpoint = options.source.open();
  uint64_t count = 0;
  for (const ckpt::TensorEntry& tensor : checkpoint.catalog().tensors) {
    if (options.dtype.empty() || name(tensor.dtype) == options.dtype) ++count;
  }
  if (console.options().json) {
    nlohmann::json document = tools::json_document();
    document["tensors"] = count;
    tools::print_json(console, document);
  } else {
    console.print_text(tools::count_text(count, "tensor"));
  }
  return 0;
}

Command make_count_command() {
  return tools::make_command<CountOptions>(
      {.name = "count",
       .description = "Counts tensors.",
       .examples = {"tool count ckpt/", "tool count ckpt/ --dtype bfloat16",
                    "tool count x --json"}},
      count);
}

// --- what it can do ---

struct Answer {
  int exit_code;
  std::string out, errors;
};

Answer ask(std::vector<std::string> words) {
  std::ostringstream out, errors;
  std::streambuf* const real_out = std::cout.rdbuf(out.rdbuf());
  std::streambuf* const real_errors = std::cerr.rdbuf(errors.rdbuf());
  words.insert(words.begin(), "tool");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  const int exit_code = tools::run_commands({.name = "tool", .description = "A tool."},
                                            static_cast<int>(arguments.size()), arguments.data(),
                                            {make_count_command()});
  std::cout.rdbuf(real_out);
  std::cerr.rdbuf(real_errors);
  return {exit_code, out.str(), errors.str()};
}

const std::string kSample = std::string(SHARDWISE_GOLDEN_DIR) + "/lw_muon_bf16_torch_dist_dp2/ckpt";

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(new_command)

BOOST_AUTO_TEST_CASE(it_answers_as_text_and_as_json) {
  const Answer all = ask({"count", kSample}), json = ask({"count", kSample, "--json"});
  BOOST_TEST(all.exit_code == 0);
  const uint64_t tensors = nlohmann::json::parse(json.out).at("tensors").get<uint64_t>();
  BOOST_TEST(all.out == std::to_string(tensors) + " tensors\n");
  BOOST_TEST(ask({"count", kSample, "--dtype", "int3"}).out == "0 tensors\n");
}

BOOST_AUTO_TEST_CASE(its_errors_have_the_codes_and_the_form_of_all_commands) {
  const Answer missing = ask({"count", "no/such/path"});
  BOOST_TEST(missing.exit_code == 5);
  BOOST_TEST(contains(missing.errors, "no/such/path"));
  const Answer as_json = ask({"count", "no/such/path", "--json"});
  BOOST_TEST(as_json.exit_code == 5);
  BOOST_TEST(nlohmann::json::parse(as_json.out).contains("error"));
  const Answer mistyped = ask({"cuont", kSample});
  BOOST_TEST(mistyped.exit_code == 2);
  BOOST_TEST(contains(mistyped.errors, "did you mean"));
  BOOST_TEST(ask({"count", kSample, "--no-such-option"}).exit_code == 2);
}

BOOST_AUTO_TEST_CASE(its_help_lists_its_own_options_and_those_of_all_commands) {
  const Answer help = ask({"count", "--help"});
  BOOST_TEST(help.exit_code == 0);
  for (const char* part : {"Counts tensors.", "--dtype", "--iteration", "--json", "tool count"}) {
    BOOST_TEST(contains(help.out, part), part);
  }
  BOOST_TEST(contains(ask({"--help"}).out, "count"));
}

BOOST_AUTO_TEST_SUITE_END()
