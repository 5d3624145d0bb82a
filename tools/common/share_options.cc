#include "common/share_options.h"

#include <utility>

#include <common/environment.h>
#include <common/option_values.h>

#include <ckpt/error.h>
#include <nlohmann/json.hpp>

namespace tools {
namespace {

constexpr int kProcessesMax = 1 << 20;

struct Launcher {
  const char* rank;
  const char* world_size;
};
// torchrun before Slurm: it may run inside of one of Slurm's tasks. Kubernetes names no count:
// the job's manifest sets it, as docs/distributed.md shows, or --world-size says it.
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
    {"JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"},
};

[[noreturn]] void usage(const std::string& problem, const std::string& hint = {}) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, problem, hint);
}

using RankAndSize = std::pair<uint32_t, uint32_t>;

RankAndSize checked(uint32_t rank, uint32_t world_size) {
  if (world_size == 0 || rank >= world_size || world_size > kProcessesMax) {
    usage("rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " processes");
  }
  return {rank, world_size};
}

RankAndSize of_launcher(std::optional<uint32_t> world_size) {
  for (const Launcher& launcher : kLaunchers) {
    const bool counts = world_size.has_value() || variable(launcher.world_size);
    if (!variable(launcher.rank) || !counts) continue;
    const auto found = static_cast<uint32_t>(number_variable(launcher.rank, 0, kProcessesMax - 1));
    if (world_size) return checked(found, *world_size);
    return checked(found,
                   static_cast<uint32_t>(number_variable(launcher.world_size, 1, kProcessesMax)));
  }
  usage(
      "no launcher has set its variables: RANK and WORLD_SIZE, or those of Open MPI, PMI, Slurm "
      "or Kubernetes",
      "--rank R --world-size W say the same");
}

}  // namespace

void ShareOptions::declare(CLI::App& app) {
  const char* group = "Several processes";
  app.add_flag("--distributed", distributed,
               "Do this process's share; rank and size come from the variables of torchrun, Open "
               "MPI, PMI, Slurm or Kubernetes")
      ->group(group);
  app.add_option("--rank", rank, "Do the share of the process with rank N")
      ->check(kCount)
      ->option_text("N")
      ->group(group);
  app.add_option("--world-size", world_size, "Total number of processes")
      ->check(kCount)
      ->option_text("N")
      ->group(group);
}

void ShareOptions::declare_piece_size(CLI::App& app) {
  app.add_option("--piece-size", piece_bytes_min,
                 "Split longer files into pieces of at least this size (default: 256M); "
                 "all processes must agree")
      ->transform(kBytes)
      ->option_text("BYTES")
      ->group("Several processes");
}

ckpt::Share ShareOptions::share() const {
  RankAndSize share(0, 1);
  if (distributed) {
    if (rank) usage("--distributed asks the launcher for the rank; --rank says it");
    share = of_launcher(world_size);
  } else {
    if (rank.has_value() != world_size.has_value()) usage("--rank and --world-size go together");
    if (rank) share = checked(*rank, *world_size);
  }
  return {share.first, share.second, piece_bytes_min};
}

std::string share_text(ckpt::Share share) {
  return "share " + std::to_string(share.rank) + " of " + std::to_string(share.world_size);
}

nlohmann::json share_json(ckpt::Share share) {
  return {{"rank", share.rank}, {"world_size", share.world_size}};
}

}  // namespace tools
