#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/limits.h>
#include <ckpt/text.h>
#include <common/text.h>
#include <CLI/CLI.hpp>

namespace tools {

// One of `words`; what is near to one of them is taken for a mistake.
inline CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return "'" + ckpt::escaped(text) + (words.size() == 1 ? "' is not " : "' is not one of ") +
               joined(words, ", ") + did_you_mean(text, words);
      },
      "");
}

// The options that are declared while it lives are of this group of --help.
class InGroup {
 public:
  InGroup(CLI::App& app, const std::string& name)
      : defaults_(*app.option_defaults()), before_(defaults_.get_group()) {
    defaults_.group(name);
  }
  ~InGroup() { defaults_.group(before_); }
  InGroup(const InGroup&) = delete;
  InGroup& operator=(const InGroup&) = delete;

 private:
  CLI::OptionDefaults& defaults_;
  const std::string before_;
};

// An option and the word that --help has for its value: "-o,--output FILE".
template <class Value>
CLI::Option* add_value(CLI::App& app, const std::string& names_and_word, Value& target,
                       const std::string& description) {
  const size_t space = names_and_word.find(' ');
  return app.add_option(names_and_word.substr(0, space), target, description)
      ->option_text(names_and_word.substr(space + 1));
}

// The same of one that takes one of these words: "--device cpu|cuda".
template <class Value>
CLI::Option* add_word(CLI::App& app, const std::string& names_and_words, Value& target,
                      const std::string& description) {
  const std::string words = names_and_words.substr(names_and_words.find(' ') + 1);
  return add_value(app, names_and_words, target, description)
      ->check(one_of(CLI::detail::split(words, '|')));
}

// An option that takes one of a few words; --help shows them as "a|b|c".
template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Value& target,
                        const std::vector<std::pair<std::string, Value>>& choices) {
  std::vector<std::string> words;
  for (const auto& [word, value] : choices) words.push_back(word);
  const auto choose = [&target, choices](const std::string& chosen) {
    for (const auto& [word, value] : choices) {
      if (word == chosen) target = value;
    }
  };
  return app.add_option_function<std::string>(name, choose)
      ->check(one_of(words))
      ->option_text(joined(words, "|"));
}

// A place as an argument of which --help says no type.
inline void add_place(CLI::App& app, const std::string& name, std::string& place,
                      const std::string& description) {
  app.add_option(name, place, description)->required()->option_text(" ");
}
inline constexpr const char* kAnyCheckpoint =
    "Checkpoint root, iteration or DCP folder, torch.save or safetensors file";
inline constexpr const char* kRootOfIterations =
    "A folder of iterations: iter_0000100, checkpoint-500, step-100, ...";

// Of a tool that opens checkpoints.
inline void add_follow_links(CLI::App& app, ckpt::Limits& limits) {
  app.add_flag("--follow-links", limits.follow_links,
               "Follow links that lead out of the checkpoint's folder");
}

// What is wrong with a whole number of at least `least`, 0 or 1; empty: nothing.
inline std::string problem_of_number(const std::string& text, int least) {
  const std::string number = "'" + text + "' is ";
  const bool is_whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (is_whole && text.size() >= 19) return number + "too large: 18 digits at most";
  const bool is_zero = text.find_first_not_of('0') == std::string::npos;
  if (is_whole && !(is_zero && least > 0)) return {};
  return number + "not a whole number (" + std::to_string(least) + " or more)";
}

// A whole number of at least 0. CLI11 alone would take -1 for the largest number.
inline const CLI::Validator kCount([](std::string& text) { return problem_of_number(text, 0); },
                                   "");

// Of a tool that opens checkpoints and their roots.
inline void add_iteration(CLI::App& app, std::optional<int64_t>& iteration, ckpt::Limits& limits) {
  add_value(app, "--iteration N", iteration,
            "Iteration of a checkpoint root (default: the one that "
            "latest_checkpointed_iteration.txt names)")
      ->check(kCount);
  add_follow_links(app, limits);
}

// A whole number of at least 1.
inline const CLI::Validator kSize([](std::string& text) { return problem_of_number(text, 1); }, "");

// A size of a run's grid.
inline void add_size(CLI::App& app, const char* names, std::optional<uint32_t>& size,
                     const char* description) {
  app.add_option(names, size, description)->check(kSize)->option_text("N");
}

// A whole number from `least` to `most`.
inline CLI::Validator whole_number(uint64_t least, uint64_t most) {
  const auto problem = [least, most](std::string& text) -> std::string {
    const auto number = ckpt::number_in<uint64_t>(text);
    if (number && *number >= least && *number <= most) return {};
    return "'" + text + "' is not a whole number from " + std::to_string(least) + " to " +
           std::to_string(most);
  };
  return CLI::Validator(problem, "");
}

// A number of bytes, such as 4096, 512M or 8G (of 1024). CLI11 alone would take -1 for the largest
// number, and what is too large for what it leaves.
inline const CLI::Validator kBytes(
    [](std::string& text) {
      const std::string digits = text.substr(0, text.find_first_not_of("0123456789"));
      const std::string unit = text.substr(digits.size());
      const std::string problem = "'" + text + "' is not a size such as 4096, 512M or 8G";
      if (digits.empty() || digits.size() > 18) return problem;
      if (unit.find_first_not_of("kKmMgGtTpPeEiIbB") != std::string::npos) return problem;
      try {
        return CLI::AsSizeValue(false)(text);
      } catch (const CLI::Error&) {
        return problem;
      }
    },
    "");

// FROM and TO of a text that kRename has passed.
inline std::pair<std::string, std::string> split_rename(const std::string& text) {
  const size_t equals = text.find('=');
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// FROM=TO; TO may be empty.
inline const CLI::Validator kRename(
    [](std::string& text) {
      const size_t equals = text.find('=');
      const bool is_rename = equals != std::string::npos && equals > 0;
      return is_rename ? std::string() : "'" + text + "' is not FROM=TO";
    },
    "");

// A finite number of at least 0.
inline const CLI::Validator kTolerance(
    [](std::string& text) {
      double number = -1;
      const bool is_number = CLI::detail::lexical_cast(text, number);
      const bool is_tolerance = is_number && number >= 0 && number <= 1e300;
      return is_tolerance ? std::string() : "'" + text + "' is not a number (0 or more)";
    },
    "");

}  // namespace tools
