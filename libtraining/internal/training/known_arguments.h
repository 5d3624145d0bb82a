#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/value.h>

// What is known of every argument of Megatron and of Megatron-Bridge's providers: arguments.tsv,
// which tests hold to the releases that it names (docs/arguments.md).
namespace optim {

// Layout: changes names, shapes, order, owners or the meaning of rows. Step: changes what a step
// computes. Refused: a layout of which only the values in `safe` are understood; "*": of providers
// alone, of which None and False are understood.
enum class ArgumentClass : uint8_t { Layout, Step, Harmless, Refused };

struct KnownArgument {
  std::string_view name;
  ArgumentClass kind = ArgumentClass::Harmless;
  std::string_view safe = {};     // of Refused: values, as "None, 0, 1"
  std::string_view outcome = {};  // how a layout is understood; of Refused: what works instead
  std::string_view options = {};  // of Megatron-LM's command line, as docs/arguments.md writes them
};

const std::vector<KnownArgument>& known_arguments();  // by name

// Whether a release of Megatron-LM has it in a run's args.
bool is_known_argument(std::string_view name);

// Whose a run's args are: Megatron-LM's, or made of the configuration of a run of Megatron-Bridge.
enum class ArgsOf : uint8_t { MegatronLm, Bridge };

// Of a run's args, a Dict: those that no release has, by name, for users.
std::vector<std::string> unknown_arguments(const ckpt::Value& args, ArgsOf origin);

struct RefusedArgument {
  std::string name, problem, instead;
};
// Those whose values are not understood.
std::vector<RefusedArgument> refused_arguments(const ckpt::Value& args, ArgsOf origin);

}  // namespace optim
