#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include <ckpt/staging.h>

namespace CLI {
class App;
}

namespace tools {

// Which share of the work is this process's: --rank and --world-size say it, or --distributed asks
// the variables of the launcher. They alone never split anything.
struct ShareOptions {
  bool distributed = false;
  std::optional<uint32_t> rank, world_size;
  uint64_t piece_bytes_min = ckpt::Share().piece_bytes_min;

  void declare(CLI::App& app);
  void declare_piece_size(CLI::App& app);  // where files may be cut
  // Throws InvalidArgument where what is given does not make a share.
  ckpt::Share share() const;
};

std::string share_text(ckpt::Share share);  // "share 0 of 3": by rank
nlohmann::json share_json(ckpt::Share share);

}  // namespace tools
