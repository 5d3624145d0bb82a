#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <optim/process_groups.h>

namespace tools::step_replay {

// How this process was started: by --spawn, by torchrun (RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT are set), or alone. Throws Error(InvalidArgument) for variables that make no sense.
optim::ProcessMesh find_processes();

// What a finished group of processes left.
struct SpawnResult {
  int exit_code = 0;                       // of the first process that failed
  std::string out, errors;                 // of process 0, or of the one that failed
  std::optional<ckpt::Error> killed = {};  // to be thrown: a signal ended one of them
};

// Runs `count` processes with the same command line on this machine and waits for all of them.
// When one is killed, or a stop is requested, the others are told to stop at once; when one fails
// otherwise, they are first given time to notice. None outlives this call. Throws Error(IoFailure)
// where no process or temporary folder can be made.
SpawnResult spawn_processes(const std::vector<std::string>& arguments, int count,
                            std::stop_token stop);
bool is_spawned();  // this process is one of them

}  // namespace tools::step_replay
