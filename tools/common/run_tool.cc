#include "common/run_tool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <string_view>

#include <ckpt/error.h>
#include <ckpt/folder.h>
#include <common/help_page.h>
#include <common/option_values.h>
#include <common/text.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

// What jemalloc reads, where a program has it: one arena, since few threads allocate at once and
// several keep more free pages; what is free for a second goes back, address space as well, which
// `ulimit -v` counts.
extern "C" {
const char* malloc_conf = "narenas:1,dirty_decay_ms:1000,retain:false";
}

namespace tools {
namespace {

// The process as every tool wants it, whatever it was started with.

// Something that can be neither read nor written and is always there: as if it were still closed.
void hold_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool is_open = fcntl(descriptor, F_GETFD) >= 0;
    if (!is_open) (void)open("/", O_PATH | O_DIRECTORY);  // takes the lowest that is free
  }
}

constexpr size_t kReserveBytes = size_t{1} << 20;
std::atomic<void*> memory_reserve = nullptr;

// Called by operator new where there is no memory: some for undoing what was begun, and for saying
// so.
void give_back_reserve() {
  std::free(memory_reserve.exchange(nullptr));
  throw std::bad_alloc();
}

// What every tool does before anything else, so that limits of the process end it with an error and
// nothing half is left, and no file takes the place of a closed stdin, stdout or stderr.
void set_up_process() {
  if (memory_reserve == nullptr) memory_reserve = std::malloc(kReserveBytes);
  std::set_new_handler(give_back_reserve);
  hold_closed_descriptors();
  look_at_remote_places();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of file sizes then fails with EFBIG
}

// Throws IoFailure where stdout is closed, or open for reading alone.
void refuse_closed_stdout() {
  const int flags = fcntl(STDOUT_FILENO, F_GETFL);
  const bool is_writable = flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY;
  if (is_writable) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "stdout is closed",
                    "if nobody is to read it, send it to /dev/null");
}

using Words = std::vector<std::string>;

// A parser with its command's options declared. Not movable: the parser holds addresses into it.
struct Parser {
  explicit Parser(const ToolInfo& info) : app(info.description, info.name) {}
  CLI::App app;
  CommonOptions common;
  HelpText text;
  std::function<int(Console&)> run;
};

void declare_common(CLI::App& app, CommonOptions& common, const ToolInfo& info) {
  const char* const kGroup = "Common options";
  const InGroup group(app, kGroup);
  app.set_help_flag();  // taken out and added again: --help lists groups in order of declaration
  app.set_help_flag("-h,--help", "Show this help");
  app.set_help_all_flag("--help-all", "Show all options")
      ->group(info.most_used.empty() ? "" : kGroup);
  app.set_version_flag("-V,--version", app.get_name() + " (Shardwise) " SHARDWISE_VERSION,
                       "Show the version");
  app.add_flag("--json", common.json, "One JSON document on stdout; schemas: docs/schema");
  app.add_flag("-q,--quiet", common.quiet, info.quiet + "; no warnings, notes or progress");
  const std::string detail = info.verbose.empty() ? "Time" : info.verbose + "; time";
  app.add_flag("-v,--verbose", common.verbose, detail + " and memory used, on stderr");
  app.add_flag_callback(
      "--no-progress", [&common] { common.progress = false; }, "No progress on stderr");
  add_choice<ColorMode>(
      app, "--color", common.color,
      {{"auto", ColorMode::Auto}, {"always", ColorMode::Always}, {"never", ColorMode::Never}})
      ->description("auto (default): on a terminal, unless NO_COLOR is set");
  add_value(app, "-j,--threads N", common.threads, "Threads (default: one per core)")
      ->check(whole_number(0, 4096));
}

const Command* find_command(const std::vector<Command>& commands, const std::string& name) {
  const auto is_named = [&](const Command& command) { return command.info.name == name; };
  const auto found = std::ranges::find_if(commands, is_named);
  return found == commands.end() ? nullptr : &*found;
}

HelpSection exit_codes_section(const ToolInfo& info) {
  std::vector<HelpRow> rows = {{"0", "done"}};
  if (!info.exit_1.empty()) rows.push_back({"1", info.exit_1});
  rows.insert(rows.end(), {{"2", "wrong usage"},
                           {"3", "corrupt or malformed input"},
                           {"4", "not supported, or refused under --strict"},
                           {"5", "not found, destination exists, or an I/O error"},
                           {"70", "a bug in Shardwise"},
                           {"130, 143", "stopped by SIGINT or SIGTERM"}});
  return {"Exit codes", rows};
}

// What follows the options: `commands` may be empty.
std::vector<HelpSection> ending_of(const ToolInfo& info, const std::vector<Command>& commands) {
  HelpSection words = {"Commands (each has its own --help)", {}}, examples = {"Examples", {}};
  for (const Command& command : commands) {
    if (!command.info.name.empty()) {
      words.rows.push_back({command.info.name, command.info.description});
    }
  }
  for (const std::string& example : info.examples) examples.rows.push_back({example});
  HelpSection signals = {"Signals", {{"SIGUSR1", "prints the progress once on stderr"}}};
  if (!info.has_progress) signals.rows.clear();
  std::vector<HelpSection> ending = {words, examples, exit_codes_section(info), signals};
  std::erase_if(ending, [](const HelpSection& section) { return section.rows.empty(); });
  return ending;
}

std::unique_ptr<Parser> make_parser(const ToolInfo& tool, const Command& command) {
  ToolInfo info = command.info;
  info.name = tool.name + (info.name.empty() ? "" : " " + info.name);
  auto parser = std::make_unique<Parser>(info);
  parser->run = command.declare(parser->app);
  declare_common(parser->app, parser->common, info);
  parser->text = {false, info.most_used, ending_of(info, {})};
  parser->app.formatter(make_help_page(parser->text));
  return parser;
}

// What parses when no word is a subcommand's: the nameless command, or a parser that only knows the
// common options.
std::unique_ptr<Parser> make_default_parser(const ToolInfo& tool,
                                            const std::vector<Command>& commands) {
  const Command* nameless = find_command(commands, "");
  auto parser = nameless != nullptr ? make_parser(tool, *nameless) : std::make_unique<Parser>(tool);
  if (nameless == nullptr) declare_common(parser->app, parser->common, tool);
  parser->app.description(tool.description);
  parser->text = {commands.size() > 1, tool.most_used, ending_of(tool, commands)};
  parser->app.formatter(make_help_page(parser->text));
  return parser;
}

Words names_of(const std::vector<Command>& commands) {
  Words names;
  for (const Command& command : commands) {
    if (!command.info.name.empty()) names.push_back(command.info.name);
  }
  return names;
}

// The hidden --manual FOLDER. A word that leads to another program has no examples, and no page.
int write_manual_of(const ToolInfo& tool, const std::vector<Command>& commands,
                    const std::string& folder) {
  std::vector<std::unique_ptr<Parser>> parsers;
  parsers.push_back(make_default_parser(tool, commands));
  for (const Command& command : commands) {
    const bool has_page = !command.info.name.empty() && !command.info.examples.empty();
    if (has_page) parsers.push_back(make_parser(tool, command));
  }
  std::vector<ManualPage> pages;
  for (const auto& parser : parsers) pages.push_back({&parser->app, &parser->text});
  write_manual(folder, pages, names_of(commands));
  return 0;
}

bool takes_value(const CLI::App& app, const std::string& word) {
  const CLI::Option* option = app.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_min() > 0;
}

// Index of the first word that is neither an option nor an option's value; nothing after "--" is a
// command.
std::optional<size_t> first_word(const CLI::App& app, const Words& words) {
  for (size_t index = 0; index < words.size(); ++index) {
    if (words[index] == "--") return std::nullopt;
    if (words[index].size() < 2 || words[index][0] != '-') return index;
    if (takes_value(app, words[index])) ++index;
  }
  return std::nullopt;
}

// What other programs call our commands; "" is the one without a word.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"compare", "diff"}, {"cmp", "diff"},      {"list", "ls"},     {"keys", "ls"},
    {"info", ""},        {"summary", ""},      {"cat", "show"},    {"print", "show"},
    {"check", "verify"}, {"checksum", "hash"}, {"sha256", "hash"}, {"du", "tree"},
};

// What a word that is not a command is called here.
std::optional<std::string> called_here(const std::vector<Command>& commands,
                                       const std::string& word) {
  for (const auto& [theirs, ours] : kSynonyms) {
    std::string name(ours);
    if (theirs == word && find_command(commands, name) != nullptr) return name;
  }
  return std::nullopt;
}

// The first word may be a path; one that does not exist is most likely a command.
void refuse_mistyped_command(const std::vector<Command>& commands, const std::string& word) {
  std::error_code unknown;
  if (std::filesystem::exists(word, unknown)) return;
  if (const auto ours = called_here(commands, word)) {
    throw ckpt::Error(
        ckpt::ErrorCode::InvalidArgument, {}, "no command '" + ckpt::escaped(word) + "'",
        ours->empty() ? "a path alone shows the page about it" : "the command is '" + *ours + "'");
  }
  const auto meant = nearest_word(word, names_of(commands));
  if (!meant) return;
  throw ckpt::Error(
      ckpt::ErrorCode::NotFound, {},
      "'" + ckpt::escaped(word) + "' does not exist; did you mean the command '" + *meant + "'?");
}

// "help ls", as many programs take it; where there is a file of that name, it is a path.
void read_help_as_option(Words& words) {
  std::error_code unknown;
  if (words.empty() || words[0] != "help" || std::filesystem::exists("help", unknown)) return;
  words.erase(words.begin());
  words.emplace_back("--help");
}

std::string hint_of_unexpected(const CLI::App& app, const std::vector<Command>& commands,
                               const std::string& word) {
  if (find_command(commands, word) != nullptr) {
    return "the command comes first: " + app.get_name() + " " + word + " PATH";
  }
  std::error_code unknown;
  const bool has_command = app.get_name().find(' ') != std::string::npos;
  const bool can_compare = !has_command && find_command(commands, "diff") != nullptr;
  if (!can_compare || !std::filesystem::exists(word, unknown)) return {};
  return "two checkpoints are compared by " + app.get_name() + " diff A B";
}

// What CLI11 left over, before it missed something else: "--dp is required" must not hide it.
void refuse_unknown_words(const CLI::App& app, const std::vector<Command>& commands) {
  for (const std::string& word : app.remaining()) {
    if (word.size() < 2 || word[0] != '-' || word == "--") continue;
    const std::string name = word.substr(0, word.find('='));
    Words known;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& each : option->get_lnames()) known.push_back("--" + each);
    }
    const std::string hint = hint_of_option(app.get_name(), name);
    const std::string meant = hint.empty() ? did_you_mean(name, known) : "";
    refuse_usage("unknown option '" + ckpt::escaped(name) + "'" + meant, hint);
  }
  for (const std::string& word : app.remaining()) {
    if (word == "--") continue;
    refuse_usage("unexpected argument '" + ckpt::escaped(word) + "'",
                 hint_of_unexpected(app, commands, word));
  }
}

// Takes the subcommand's word out of `words` and gives back the parser that is to read the rest.
std::unique_ptr<Parser> choose_parser(const ToolInfo& tool, const std::vector<Command>& commands,
                                      Words& words) {
  auto parser = make_default_parser(tool, commands);
  const std::optional<size_t> index = first_word(parser->app, words);
  const std::string word = index ? words[*index] : "";
  const Command* command = word.empty() ? nullptr : find_command(commands, word);
  if (command != nullptr) {
    words.erase(words.begin() + static_cast<ptrdiff_t>(*index));
    parser = make_parser(tool, *command);
  } else if (parser->run) {
    refuse_mistyped_command(commands, word);
  } else if (index) {
    throw ckpt::Error(
        ckpt::ErrorCode::InvalidArgument, {},
        "no command '" + ckpt::escaped(word) + "'" + did_you_mean(word, names_of(commands)),
        "see " + tool.name + " --help");
  }
  return parser;
}

bool asks_for_json(const Words& words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  return std::find(words.begin(), end, "--json") != end;
}

int fail(const std::string& tool, Failure failure, bool json) {
  std::cout.flush();
  report_failure(tool, failure, json);
  return failure.exit_code;
}

// A reader that went away is caught by SIGPIPE; a full disk under a redirected stdout is caught
// here.
void flush_stdout() {
  std::cout.flush();
  if (!std::cout) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cannot write to stdout");
}

// Of this process; not of those that it started.
void print_costs(Console& console, std::chrono::steady_clock::time_point start) {
  if (!console.options().verbose) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  console.note("took " + short_number_text(seconds.count()) + " s, at most " +
               size_text(static_cast<uint64_t>(usage.ru_maxrss) << 10) + " of memory");
}

int run_parser(Parser& parser, const ToolInfo& tool) {
  const auto start = std::chrono::steady_clock::now();
  Console console(tool.name, parser.common);
  try {
    const int exit_code = parser.run(console);
    flush_stdout();
    print_costs(console, start);
    return exit_code;
  } catch (...) {
    Failure failure = describe_failure(std::current_exception());
    if (console.stop_signal() != 0) failure = stopped_by(console.stop_signal(), failure);
    return fail(tool.name, std::move(failure), parser.common.json);
  }
}

// CLI11 says --help and --version by throwing.
int parse_and_run(Parser& parser, const ToolInfo& tool, const std::vector<Command>& commands,
                  Words words) {
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    parser.app.parse(std::move(words));
  } catch (const CLI::Success& answered) {
    const int exit_code = parser.app.exit(answered);
    flush_stdout();
    return exit_code;
  } catch (const CLI::ParseError&) {
    refuse_unknown_words(parser.app, commands);
    throw;
  }
  if (!parser.run) {
    refuse_usage("a command is required", "see " + tool.name + " --help");
  }
  return run_parser(parser, tool);
}

int run_hosted_parser(Parser& parser, const Program& program, Words words, Host& host) {
  std::reverse(words.begin(), words.end());
  try {
    parser.app.parse(std::move(words));
  } catch (const CLI::ParseError& usage) {
    refuse_unknown_words(parser.app, program.commands);
    refuse_usage(usage.what());
  }
  parser.common.progress = false;
  Console console(program.tool.name, parser.common, host);
  return parser.run(console);
}

}  // namespace

void look_at_remote_places() {
  const auto places = ckpt::remote_folder(variable);
  for (const char* scheme : {"s3", "https", "http"}) {
    ckpt::add_source(scheme, [places] { return places; });
  }
}

int run_hosted(const Program& program, std::vector<std::string> words, Host& host) {
  const std::unique_ptr<Parser> parser = choose_parser(program.tool, program.commands, words);
  return run_hosted_parser(*parser, program, std::move(words), host);
}

int run_commands(const ToolInfo& tool, int argc, char** argv,
                 const std::vector<Command>& commands) {
  set_up_process();
  bool json = false;
  std::string name;
  try {
    name = tool.name;
    Words words(argv + std::min(argc, 1), argv + argc);
    json = asks_for_json(words);
    read_help_as_option(words);
    refuse_closed_stdout();
    const bool asks_for_manual = words.size() == 2 && words[0] == "--manual";
    if (asks_for_manual) return write_manual_of(tool, commands, words[1]);
    const std::unique_ptr<Parser> parser = choose_parser(tool, commands, words);
    name = parser->app.get_name();
    return parse_and_run(*parser, tool, commands, std::move(words));
  } catch (...) {
    Failure failure = describe_failure(std::current_exception());
    if (failure.code == "usage" && failure.hint.empty()) failure.hint = "see " + name + " --help";
    return fail(tool.name, std::move(failure), json);
  }
}

}  // namespace tools
