#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <common/form_options.h>
#include <common/source_options.h>
#include <training/convert.h>

namespace CLI {
class App;
}

namespace tools {

class Console;

// What ckpt-convert and reshard have in common.
struct ConversionOptions {
  std::string source, destination, into;
  std::optional<int64_t> iteration;
  ckpt::Limits limits;
  std::string ownership = "ping-pong";
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
  optim::OwnershipPolicy policy() const;
  const std::string& target() const { return into.empty() ? destination : into; }
  std::string place() const;  // what is written: of a root that is added to, the iteration's folder
};

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

}  // namespace tools
