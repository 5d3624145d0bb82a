#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <training/opened_training.h>
#include <training/summary.h>

// The lines of the page about a checkpoint, as pure text.
namespace tools::inspect {

struct Page {
  const optim::OpenedTraining& checkpoint;
  const optim::Summary& summary;
  bool is_of_tracker = false;  // which names the iteration
};

// "Megatron torch, LayerWise optimizer", "torch.save file".
std::string format_words(const Page& page);

// A label and what is said under it, in pieces that stay together on a line.
struct Fact {
  std::string label;
  std::vector<std::string> pieces;
};

// In the order of the page; what has nothing to say is left out.
std::vector<Fact> facts_of(const Page& page);

// "incomplete: FILE is missing, ...", as the status.
Fact incomplete_fact(const std::vector<std::string>& incomplete);

// "Muon 9 parameters, lr 0.00815, wd 0.1"; of all but the first without the word.
std::string optimizer_text(const optim::OptimizerFacts& facts, bool is_first);

// "balance 1.20 / 0.80 of the mean work" of optim::balance_of(); empty where that is.
std::string balance_text(const std::vector<double>& shares);

// Lines of at most `width` columns where the pieces allow it: a piece that does not fit on a line
// starts the next one.
std::vector<std::string> fact_lines(const Fact& fact, size_t width);

// "###", `count` of `count_max` at full width; empty where it is less than half a character.
std::string bar(uint64_t count, uint64_t count_max);
inline constexpr size_t kBarWidth = 19;

}  // namespace tools::inspect
