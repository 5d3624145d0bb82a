#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <common/console.h>
#include <nlohmann/json_fwd.hpp>

#include <ckpt/catalog.h>
#include <ckpt/inventory.h>
#include <ckpt/key_pattern.h>
#include <ckpt/staging.h>
#include <training/opened_training.h>

namespace CLI {
class App;
}

namespace tools {

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
// Names of files for people: the first six, and how many more.
std::string few_of(const std::vector<std::string>& names);
// Names what a plain checkpoint's folder holds beside it, which a command does not read.
bool note_files_beside(const optim::OpenedTraining& checkpoint, Console& console);

// The paths of the files that .metadata names and that are missing, sorted.
std::vector<std::string> missing_files(const ckpt::Catalog& catalog);

// --include and --exclude: keys and globs, as docs/formats/keys.md reads them.
struct KeyFilter {
  std::vector<std::string> include;
  std::vector<std::string> exclude;

  void declare(CLI::App& app);
  bool is_everything() const { return include.empty() && exclude.empty(); }
  // To be resolved with the keys that there are.
  ckpt::KeySelection selection() const { return {include, exclude}; }
  // "--include 'a' --exclude 'b'", for people.
  std::string text() const;
};

// Leaves in the inventories what --include and --exclude select. Warns of globs that match nothing.
// Throws NotFound where an included key is not there, or nothing is left: of nothing there is
// nothing to say.
void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console);

// Says of each pattern that matches nothing what may have been meant.
void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console);

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
