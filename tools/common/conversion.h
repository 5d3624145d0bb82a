#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/cast.h>
#include <training/convert.h>
#include <training/filing.h>
#include <training/repair.h>

#include "common/json.h"
#include "common/run_tool.h"
#include "common/source_options.h"

namespace CLI {
class App;
}

namespace tools {

class Console;

// How the destination files the state of optimizers: options that ckpt-convert and reshard have in
// common.
struct FormOptions {
  optim::FilingChange form;

  void declare(CLI::App& app);
};

// --dtype.
void add_types(CLI::App& app, std::vector<ckpt::TypeRule>& types);

// Parallel sizes of a destination, and what goes with them: options that ckpt-convert and reshard
// have in common.
struct SizeOptions {
  optim::SizeChange sizes;
  std::optional<uint32_t> shards;
  std::string sizes_from, model_rules;
  optim::RngPolicy rng = optim::RngPolicy::Seed;

  void declare(CLI::App& app);
  // What was asked for. Throws InvalidArgument for --sizes-from beside a size.
  optim::SizeChange change() const;
};

// "TP 2  PP 2  CP 1  DP 2", and with experts "EP 4  ETP 1".
std::string grid_text(const optim::RunGrid& grid, bool has_experts);

// What ckpt-convert and reshard have in common.
struct ConversionOptions {
  std::string source, destination, into;
  std::optional<int64_t> iteration;
  ckpt::Limits limits;
  optim::OwnershipPolicy ownership = optim::OwnershipPolicy::PingPong;
  SizeOptions sizes;
  FormOptions form;
  bool model_only = false;
  std::vector<ckpt::TypeRule> types;
  optim::RepairOptions repair;
  bool lists_repairs = false;  // --repair without a kind
  bool strict = false, force = false, dry_run = false;
  bool verify = false, resume = false, finish = false, clean = false;
  ShareOptions share;
  uint64_t max_memory_bytes = 0;  // 0: as libckpt does it

  void declare(CLI::App& app);
  void declare_writing(CLI::App& app);
  // Of commands with several sources: -o and how its result is written.
  void declare_result(CLI::App& app);
  const std::string& target() const { return into.empty() ? destination : into; }
  std::string place() const;  // what is written: of a root that is added to, the iteration's folder
};

// Of a command that writes: what --help says of --quiet and --verbose, and that it has progress.
ToolInfo info_of_writing(ToolInfo info);

// What the options above say to a library call.
struct ConversionOrder {
  std::filesystem::path source, destination;
  optim::ConvertOptions options;
};

// Runs one conversion with progress and signals, and prints what was done, what was not carried and
// why. `run` makes the library's call. Returns the exit code.
using Conversion = std::function<optim::ConvertReport(const ConversionOrder& order)>;
int run_conversion(const Conversion& run, const ConversionOptions& options,
                   optim::ConvertOptions own, Console& console);

// What they end with, as text or JSON: what was written, what is in it, what was left out or not
// carried and why, what was proven. Under --quiet what is missing alone.
void print_conversion(Console& console, const ConversionOptions& options,
                      const optim::ConvertReport& report);

// What was mended, in the report of a conversion.
void print_mended(const std::vector<optim::RepairFinding>& repairs, Console& console);
nlohmann::json repairs_json(const std::vector<optim::RepairFinding>& repairs);

}  // namespace tools
