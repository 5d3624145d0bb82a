#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <training/opened_training.h>

namespace CLI {
class App;
}

namespace tools {

class Console;

// A checkpoint to read: the positional PATH (or another name), --iteration and --follow-links.
struct SourceOptions {
  std::string path;
  std::optional<int64_t> iteration;
  ckpt::Limits limits;

  void declare(CLI::App& app, const std::string& name = "PATH");
  optim::OpenedTraining open() const;
  // For what looks at no values: files that .metadata names may be missing, which is a warning.
  optim::OpenedTraining open_to_list(Console& console) const;
  // The same without the warning: for who tells what is missing.
  optim::OpenedTraining open_quietly() const;
};

// Throws Corrupt where the args of a folder of ranks, or metadata.json, say that files are missing.
void refuse_missing_files(const optim::OpenedTraining& checkpoint);
// Names what a plain checkpoint's folder holds beside it, which a command does not read.
void note_files_beside(const optim::OpenedTraining& checkpoint, Console& console);

// The paths of the files that .metadata names and that are missing, sorted.
std::vector<std::string> missing_files(const ckpt::Catalog& catalog);

}  // namespace tools
