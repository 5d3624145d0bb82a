#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "inspect/load/resume.h"
#include "inspect/load/shell_words.h"

// How a run is started, as a file states it. The file is data: nothing in it is run.
namespace tools::inspect {

struct Launch {
  // Of a command line: each option with its words, the last one where it is repeated.
  std::map<std::string, std::vector<ShellWord>> options = {};
  std::string missing = {};  // why the options cannot be told; empty: they can
  // Of arguments that a run printed, after it checked them: all of them, by Megatron's names.
  bool is_printed = false;
  nlohmann::json printed = nlohmann::json::object();
  std::optional<uint64_t> processes = {};
};

// A shell script or command line that starts a Python program, the arguments that Megatron printed
// into its log, or a JSON object of them. Throws NotFound, IoFailure; Corrupt where it is not one
// of these, InvalidArgument where it starts two programs.
Launch read_launch(const std::filesystem::path& file);

// Sets in `run` what the launch does otherwise than the run that wrote the checkpoint; what `run`
// has already is left as it is. What the launch does not say is the release's default.
void add_launch(const Launch& launch, const ResumeFacts& checkpoint, ResumeRun& run);

}  // namespace tools::inspect
