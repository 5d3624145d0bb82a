#include "inspect/load/launch.h"

#include <algorithm>

#include <ckpt/error.h>
#include <ckpt/named_file.h>
#include <ckpt/text.h>
#include <common/text.h>
#include <training/known_arguments.h>

namespace tools::inspect {
namespace {

using nlohmann::json;

constexpr uint64_t kLaunchBytesMax = uint64_t{64} << 20;  // logs are long

std::optional<uint64_t> number_in(const ShellWord& word) {
  return word.missing.empty() ? ckpt::number_in<uint64_t>(word.text) : std::nullopt;
}

bool is_option(const ShellWord& word) { return word.text.starts_with("--"); }

void add_options(Launch& launch, const std::vector<ShellWord>& words) {
  std::vector<ShellWord>* values = nullptr;
  for (const ShellWord& word : words) {
    const bool may_be_options = !word.missing.empty() && (values == nullptr || !values->empty());
    if (may_be_options) {
      launch.missing = word.missing;
    } else if (is_option(word)) {
      const size_t equals = word.text.find('=');
      values = &launch.options[word.text.substr(0, equals)];
      values->clear();
      if (equals != word.text.npos) {
        values->push_back({word.text.substr(equals + 1), word.missing});
      }
    } else if (values != nullptr) {
      values->push_back(word);
    }
  }
}

// Of torchrun: --nproc-per-node times --nnodes; nothing where one of them is not a number.
std::optional<uint64_t> processes_of(const std::vector<ShellWord>& words) {
  Launch launcher;
  add_options(launcher, words);
  std::optional<uint64_t> each, nodes = 1;
  for (const auto& [spelling, values] : launcher.options) {
    const ShellWord value = values.empty() ? ShellWord{} : values[0];
    if (spelling == "--nproc-per-node" || spelling == "--nproc_per_node") each = number_in(value);
    if (spelling == "--nnodes") nodes = number_in(value);
  }
  if (!each || !nodes) return std::nullopt;
  return *each * *nodes;
}

bool is_program(const ShellWord& word) { return word.text.ends_with(".py"); }

// The one command that starts a Python program with options.
struct Started {
  const ShellCommand* command = nullptr;
  size_t program = 0;
};

Started started_program(const std::vector<ShellCommand>& commands) {
  Started found;
  for (const ShellCommand& command : commands) {
    const auto program = std::ranges::find_if(command.words, is_program);
    if (program == command.words.end()) continue;
    if (std::none_of(program, command.words.end(), is_option)) continue;
    if (found.command != nullptr) {
      refuse_usage("two commands of the file start a program: lines " +
                       std::to_string(found.command->line) + " and " + std::to_string(command.line),
                   "leave one of them in the file");
    }
    found = {&command, static_cast<size_t>(program - command.words.begin())};
  }
  return found;
}

Launch launch_of_script(const std::string& text, const std::string& file) {
  const std::vector<ShellCommand> commands = shell_commands(text);
  Launch launch;
  const Started started = started_program(commands);
  if (started.command != nullptr) {
    const auto& words = started.command->words;
    const auto program = words.begin() + static_cast<ptrdiff_t>(started.program);
    launch.processes = processes_of({words.begin(), program});
    add_options(launch, {program + 1, words.end()});
    return launch;
  }
  const bool has_options_alone =
      commands.size() == 1 && !commands[0].words.empty() && is_option(commands[0].words[0]);
  if (!has_options_alone) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file, .key = {}},
                      "no command of it starts a Python program with options",
                      "a launch script, a command line, the arguments that Megatron printed, or a "
                      "JSON object of them are read");
  }
  add_options(launch, commands[0].words);
  return launch;
}

// "  lr ............................................ 0.01", as Megatron prints arguments, behind
// what a logger puts in front.
void add_printed(json& values, const std::string& line) {
  const size_t dots = line.find(" ...");
  const size_t end = dots == line.npos ? line.npos : line.find_first_not_of('.', dots + 1);
  if (end == line.npos || line[end] != ' ' || dots == 0) return;
  const size_t blank = line.rfind(' ', dots - 1);
  const size_t begin = blank == line.npos ? 0 : blank + 1;
  std::string text = line.substr(end + 1);
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.pop_back();
  values[line.substr(begin, dots - begin)] = text;
}

Launch launch_of_log(const std::string& text) {
  Launch launch{.is_printed = true};
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    add_printed(launch.printed, text.substr(at, end - at));
    at = end + 1;
  }
  return launch;
}

// The args of `ckpt-inspect show CKPT args --json`, or an object of arguments.
json args_of(const json& document) {
  const json* found = &document;
  const auto state = json::json_pointer("/entries/0/object/$object/state");
  if (document.contains(state)) found = &document[state];
  if (found->contains("args") && (*found)["args"].is_object()) found = &(*found)["args"];
  return *found;
}

MegatronOption::Kind kind_named(std::string_view name) {
  using enum MegatronOption::Kind;
  if (name == "value") return Value;
  if (name == "list") return List;
  if (name == "true") return True;
  return name == "false" ? False : Either;
}

// Those of all releases, by their spellings.
std::vector<MegatronOption> read_options() {
  std::vector<MegatronOption> options;
  for (const optim::KnownArgument& argument : optim::known_arguments()) {
    if (argument.options.empty()) continue;
    for (const std::string_view option : split(argument.options, " | ")) {
      const auto cells = split(option, " ");
      options.push_back({.trees = cells[0],
                         .spellings = split(cells[1], ","),
                         .argument = argument.name,
                         .kind = kind_named(cells[2]),
                         .type = cells[3] == "-" ? "" : cells[3],
                         .preset = json::parse(cells[4])});
    }
  }
  std::ranges::sort(options, {}, &MegatronOption::spellings);
  std::map<std::string_view, std::vector<std::string_view>> arguments;  // by spelling
  for (const MegatronOption& option : options) {
    for (const auto spelling : option.spellings) arguments[spelling].push_back(option.argument);
  }
  for (MegatronOption& option : options) option.arguments = arguments[option.spellings[0]];
  return options;
}

const std::vector<MegatronOption>& all_options() {
  static const std::vector<MegatronOption> all = read_options();
  return all;
}

bool has(const MegatronOption& option, MegatronTree tree) {
  return option.trees[static_cast<size_t>(tree)] == '1';
}

}  // namespace

Launch read_launch(const std::filesystem::path& file) {
  if (file.extension() == ".yaml" || file.extension() == ".yml") {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file.string(), .key = {}},
                      "a YAML file is not read: Megatron Bridge loads by rules of its own, which "
                      "are not known here",
                      "of Megatron-LM, the log of a run has its arguments");
  }
  const std::string text = ckpt::read_named_file(file, kLaunchBytesMax);
  const json document = json::parse(text, nullptr, false);
  Launch launch;
  if (document.is_object()) {
    launch = {.is_printed = true, .printed = args_of(document)};
  } else if (text.find("tensor_model_parallel_size ....") != text.npos) {
    launch = launch_of_log(text);
  } else {
    return launch_of_script(text, file.string());
  }
  const json& processes = launch.printed.value("world_size", json());
  if (processes.is_number_unsigned()) launch.processes = processes.get<uint64_t>();
  if (processes.is_string()) launch.processes = number_in({processes.get<std::string>()});
  if (!launch.printed.contains("num_layers")) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file.string(), .key = {}},
                      "has no num_layers: it is not the arguments of a Megatron run",
                      "`ckpt-inspect show CKPT args --json` prints those of a checkpoint");
  }
  return launch;
}

std::vector<MegatronOption> options_of(MegatronTree tree) {
  std::vector<MegatronOption> options = all_options();
  std::erase_if(options, [&](const MegatronOption& option) { return !has(option, tree); });
  return options;
}

OptionIn where_is(std::string_view spelling, MegatronTree tree) {
  OptionIn found = OptionIn::None;
  for (const MegatronOption& option : all_options()) {
    if (std::ranges::count(option.spellings, spelling) == 0) continue;
    if (has(option, tree)) return OptionIn::Release;
    found = OptionIn::Others;
  }
  return found;
}

}  // namespace tools::inspect
