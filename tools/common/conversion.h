#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <common/share_options.h>
#include <optim/convert.h>

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
  bool strict = false, force = false, dry_run = false;
  bool verify = false, resume = false, finish = false, clean = false;
  ShareOptions share;
  uint64_t max_memory_bytes = 0;  // 0: as libckpt does it

  void declare(CLI::App& app);
  optim::OwnershipPolicy policy() const;
  const std::string& target() const { return into.empty() ? destination : into; }
  std::string place() const;  // what is written: of a root that is added to, the iteration's folder
};

// Runs one conversion with progress and signals, and prints what was done, what was not carried and
// why. `run` is optim::convert or optim::reshard. Returns the exit code.
using Conversion = optim::ConvertReport (*)(const std::filesystem::path&,
                                            const std::filesystem::path&,
                                            const optim::ConvertOptions&);
int run_conversion(Conversion run, const ConversionOptions& options,
                   optim::ConvertOptions conversion, Console& console);

}  // namespace tools
