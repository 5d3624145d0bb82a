#include "inspect/page_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <ranges>
#include <sstream>

#include <ckpt/error.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

using ckpt::Format;
using optim::KeyKind;
using optim::LogicalTensor;

constexpr size_t kLabelWidth = 11;
constexpr size_t kTypesShown = 3;
constexpr size_t kRanksShown = 4;
constexpr size_t kPartsShown = 2;

// --- format ---

std::string optimizer_words(const optim::Summary& summary, Format format) {
  const bool has_state = summary.kinds.contains(std::string(name(KeyKind::OptimizerState)));
  if (summary.sharding.empty()) return has_state ? "" : ", no optimizer state";
  if (summary.sharding == "replicated") return ", optimizer state not sharded";
  if (summary.sharding != "layer_wise") return ", DistributedOptimizer (ZeRO-1)";
  if (format != Format::TorchDist) return ", LayerWise optimizer";
  return ", LayerWise optimizer, " + std::string(summary.run.release->title);
}

// --- types ---

// The types of the tensors that `wanted` takes, the most bytes first: "bfloat16 and float32".
template <class Wanted>
std::string types_text(const std::vector<LogicalTensor>& tensors, Wanted wanted) {
  std::map<ckpt::DType, uint64_t> bytes;
  for (const LogicalTensor& tensor : tensors) {
    if (wanted(tensor)) bytes[tensor.dtype] += tensor.count_bytes;
  }
  std::vector<std::pair<ckpt::DType, uint64_t>> types(bytes.begin(), bytes.end());
  std::ranges::stable_sort(types, std::greater<>(), &std::pair<ckpt::DType, uint64_t>::second);
  std::string text = joined(std::views::take(types, kTypesShown), ", ",
                            [](const auto& type) { return ckpt::name(type.first); });
  if (types.size() > kTypesShown) {
    text += " and " + std::to_string(types.size() - kTypesShown) + " more";
  }
  return text;
}

bool is_master(const LogicalTensor& tensor) {
  return tensor.role == KeyKind::OptimizerState &&
         (tensor.state == "fp32_param" || tensor.state == "param");
}

bool is_moment(const LogicalTensor& tensor) {
  return tensor.role == KeyKind::OptimizerState && !is_master(tensor) &&
         optim::holds_parameters(tensor.dtype);
}

Fact types_fact(const optim::Summary& summary) {
  const auto& tensors = summary.contents.tensors;
  const auto of_role = [&](KeyKind role) {
    return types_text(tensors, [role](const LogicalTensor& tensor) { return tensor.role == role; });
  };
  const std::string model = of_role(KeyKind::Model), average = of_role(KeyKind::Average);
  const std::string masters = types_text(tensors, is_master);
  const std::string states = types_text(tensors, is_moment);
  Fact fact{"types", {}};
  if (!model.empty()) fact.pieces.push_back(model + " model");
  if (!average.empty()) fact.pieces.push_back(average + " moving average");
  if (!masters.empty() && masters == states) {
    fact.pieces.push_back(masters + " masters and states");
  } else {
    if (!masters.empty()) fact.pieces.push_back(masters + " masters");
    if (!states.empty()) fact.pieces.push_back(states + " states");
  }
  for (size_t i = 0; i + 1 < fact.pieces.size(); ++i) fact.pieces[i] += ",";
  return fact;
}

// --- other facts ---

Fact size_fact(const optim::Summary& summary) {
  Fact fact{"size", {}};
  if (summary.parameter_count.value_or(0) != 0) {
    const std::string of = summary.parts.empty() ? "," : " in this shard,";
    fact.pieces.push_back(amount_text(*summary.parameter_count) +
                          (*summary.parameter_count == 1 ? " parameter" : " parameters") + of);
  } else if (!summary.contents.uncounted_reason.empty()) {
    fact.pieces.push_back("parameters not counted (" + summary.contents.uncounted_reason + "),");
  }
  fact.pieces.push_back(size_text(summary.stored_tensor_bytes) + " of tensors,");
  fact.pieces.push_back(count_text(summary.files.count, "file") + ",");
  fact.pieces.push_back(size_text(summary.files.count_bytes));
  return fact;
}

// "Lightning 2.6.1; epoch 0, global_step 2".
Fact trainer_fact(const optim::TrainerFacts& trainer) {
  Fact fact{"run", {}};
  std::string progress;
  if (trainer.epoch) progress = "epoch " + short_number_text(*trainer.epoch);
  if (trainer.step) {
    progress +=
        (progress.empty() ? "" : ", ") + trainer.step_key + " " + std::to_string(*trainer.step);
  }
  std::string name = trainer.trainer;
  if (!trainer.version.empty()) {
    // Another program's version has its name with it.
    const bool has_name = trainer.version.find(' ') != trainer.version.npos;
    name += has_name ? " (" + ckpt::escaped(trainer.version) + ")"
                     : " " + ckpt::escaped(trainer.version);
  }
  if (!name.empty()) fact.pieces.push_back(name + (progress.empty() ? "" : ";"));
  if (!progress.empty()) fact.pieces.push_back(progress);
  if (!trainer.source.empty()) fact.pieces.push_back("(" + trainer.source + ")");
  return fact;
}

std::optional<int64_t> size_of(const optim::Summary& summary, std::string_view name) {
  for (const auto& [known, size] : summary.run.sizes) {
    if (known == name) return size;
  }
  return std::nullopt;
}

Fact ranks_fact(const optim::Summary& summary) {
  Fact fact{"ranks", {}};
  std::string text;
  const auto add = [&](const char* label, const char* name, bool also_one) {
    const auto size = size_of(summary, name);
    if (!size || (*size == 1 && !also_one)) return;
    text += (text.empty() ? "" : "  ") + std::string(label) + " " + std::to_string(*size);
  };
  add("TP", "tensor_model_parallel_size", true);
  add("PP", "pipeline_model_parallel_size", true);
  add("VPP", "virtual_pipeline_model_parallel_size", false);
  add("CP", "context_parallel_size", true);
  add("EP", "expert_model_parallel_size", true);
  if (size_of(summary, "expert_model_parallel_size").value_or(1) > 1 ||
      size_of(summary, "expert_tensor_parallel_size") !=
          size_of(summary, "tensor_model_parallel_size")) {
    add("ETP", "expert_tensor_parallel_size", true);
  }
  add("DP", "data_parallel_size", true);
  const auto world = size_of(summary, "world_size");
  const uint64_t ranks =
      world && *world > 0 ? static_cast<uint64_t>(*world) : summary.writer_count.value_or(0);
  if (!text.empty()) fact.pieces.push_back(text);
  if (ranks != 0) {
    const std::string saved = "saved by " + count_text(ranks, "rank");
    fact.pieces.push_back(text.empty() ? saved : "  (" + saved + ")");
  }
  return fact;
}

std::string printed(double value, const char* format) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string numbers_text(const std::vector<double>& values, const char* format) {
  return joined(values, " / ", [&](double value) { return printed(value, format); });
}

Fact optimizer_fact(const optim::Summary& summary) {
  Fact fact{"optimizer", {}};
  for (size_t i = 0; i < summary.optimizers.size(); ++i) {
    std::string text = optimizer_text(summary.optimizers[i], i == 0);
    if (i + 1 < summary.optimizers.size()) text += " |";
    fact.pieces.push_back(std::move(text));
  }
  for (const auto& [name, file] : summary.groups.beside) {
    fact.pieces.push_back("(" + ckpt::escaped(name) + ")");
  }
  if (fact.pieces.empty() && !summary.states.empty()) {
    fact.pieces.push_back("state " + joined(summary.states, ", ", ckpt::escaped));
  }
  return fact;
}

// What stands under the optimizers.
Fact progress_fact(const optim::Summary& summary) {
  Fact fact{"", {}};
  const bool is_zero = !summary.sharding.empty() && summary.sharding != "layer_wise" &&
                       summary.sharding != "replicated";
  if (is_zero) fact.pieces.push_back("state " + ckpt::escaped(summary.sharding));
  if (summary.step && (!summary.states.empty() || !summary.groups.beside.empty())) {
    fact.pieces.push_back("step " + std::to_string(*summary.step));
  }
  const std::string balance = balance_text(optim::balance_of(summary.groups.ranks));
  if (!balance.empty()) fact.pieces.push_back(balance);
  for (size_t i = 0; i + 1 < fact.pieces.size(); ++i) fact.pieces[i] += ";";
  return fact;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(std::move(word));
  return words;
}

Fact set_fact(const optim::Summary& summary) {
  if (!summary.file_of_set) return {};
  return {"file", words_of(text_of(*summary.file_of_set))};
}

Fact parts_fact(const optim::Summary& summary) {
  Fact fact{"parts", {}};
  const std::vector<std::string> lines = summary.parts.lines();
  for (size_t i = 0; i < std::min(kPartsShown, lines.size()); ++i) {
    std::ranges::move(words_of(lines[i] + (i + 1 < lines.size() ? ";" : "")),
                      std::back_inserter(fact.pieces));
  }
  if (lines.size() > kPartsShown) {
    const std::string rest = std::to_string(lines.size() - kPartsShown);
    fact.pieces.push_back("and " + rest + " more kinds: ckpt-inspect ls");
  }
  return fact;
}

std::string more_text(uint64_t count, const char* what) {
  return count < 2 ? "" : " (and " + std::to_string(count - 1) + " more " + what + ")";
}

// A sentence that may be broken at any blank, then `last`.
Fact sentence(const std::string& text, const std::string& last) {
  Fact fact{"status", words_of(text)};
  fact.pieces.push_back(last);
  return fact;
}

// What else lies in the folder: the largest by name.
Fact beside_fact(const std::vector<ckpt::FileBeside>& beside) {
  constexpr size_t kShown = 4;
  std::vector<const ckpt::FileBeside*> files;
  for (const ckpt::FileBeside& file : beside) files.push_back(&file);
  std::ranges::stable_sort(files, std::ranges::greater(), &ckpt::FileBeside::count_bytes);
  Fact fact{"beside", {}};
  for (size_t i = 0; i < std::min(files.size(), kShown); ++i) {
    const bool is_sized = !files[i]->is_folder && files[i]->count_bytes != 0;
    const std::string size = is_sized ? " " + size_text(files[i]->count_bytes) : "";
    fact.pieces.push_back(ckpt::escaped(files[i]->path) + (files[i]->is_folder ? "/" : size) +
                          (i + 1 < files.size() ? "," : ""));
  }
  if (files.size() > kShown) {
    fact.pieces.push_back("and " + count_text(files.size() - kShown, "more file"));
  }
  return fact;
}

Fact status_fact(const optim::Status& status) {
  const std::string verify = "ckpt-inspect verify";
  switch (status.health) {
    case optim::Health::Complete:
      return {"status", {"complete (quick check);", "checksums not read: " + verify}};
    case optim::Health::FilesPresent:
      return {"status", {"every file is there;", "contents not checked: " + verify}};
    case optim::Health::Unsure:
      return sentence(
          "every file is there, but the state does not fit the parameters: " + status.problem + ";",
          "see " + verify);
    case optim::Health::Incomplete: return incomplete_fact(status.incomplete);
    case optim::Health::Damaged:
      return sentence(
          "damaged: " + status.problem + more_text(status.problem_count, "findings") + ";",
          "see " + verify);
  }
  return {};
}

// A piece that is longer than a line is broken at its blanks.
std::vector<std::string> pieces_of(const Fact& fact, size_t width) {
  std::vector<std::string> pieces;
  for (const std::string& piece : fact.pieces) {
    if (kLabelWidth + display_width(piece) <= width) {
      pieces.push_back(piece);
      continue;
    }
    std::ranges::move(words_of(piece), std::back_inserter(pieces));
  }
  return pieces;
}

}  // namespace

Fact incomplete_fact(const std::vector<std::string>& incomplete) {
  constexpr size_t kShown = 8;
  std::string text = "incomplete: " + joined(std::views::take(incomplete, kShown), ", ");
  if (incomplete.size() > kShown) {
    text +=
        " (and " + std::to_string(incomplete.size() - kShown) + " more files: ckpt-inspect verify)";
  }
  return {"status", words_of(text)};
}

std::string format_words(const Page& page) {
  const Format format = page.checkpoint.catalog().format;
  const std::string& variant = page.summary.variant;
  if (variant == "megatron") {
    return "Megatron " + std::string(name(format)) + optimizer_words(page.summary, format);
  }
  if (const std::string& joined = page.checkpoint.joined_words(); !joined.empty()) return joined;
  if (format == Format::Torch) return "torch.save file";
  if (format == Format::TorchDist) return "PyTorch DCP (torch_dist)";
  if (format != Format::Safetensors) return std::string(name(format));
  const bool has_config = std::ranges::any_of(
      page.summary.beside, [](const auto& file) { return file.path == "config.json"; });
  if (has_config) return "safetensors, a Hugging Face model folder";
  const auto& header = page.checkpoint.header_metadata();
  const auto of = header.find("format");
  return of != header.end() && of->second == "pt" ? "safetensors, tensors of PyTorch"
                                                  : "safetensors";
}

std::string optimizer_text(const optim::OptimizerFacts& facts, bool is_first) {
  const bool is_known = facts.rule != "optimizer";
  std::string text = is_known ? facts.rule : "rule not known";
  if (facts.parameter_count) {
    const uint64_t count = *facts.parameter_count;
    text += (is_known ? " " : ", ") +
            (is_first ? count_text(count, "parameter") : std::to_string(count));
  }
  const auto add = [&](const char* label, const std::vector<double>& values) {
    if (!values.empty()) text += label + numbers_text(values, "%.3g");
  };
  add(", lr ", facts.learning_rates);
  add(", wd ", facts.weight_decays);
  return text;
}

std::string balance_text(const std::vector<double>& shares) {
  if (shares.empty()) return {};
  std::string text;
  if (shares.size() <= kRanksShown) {
    text = numbers_text(shares, "%.2f");
  } else {
    const auto [least, most] = std::ranges::minmax(shares);
    text = printed(least, "%.2f") + " to " + printed(most, "%.2f");
  }
  return "balance " + text + " of the mean work";
}

std::vector<Fact> facts_of(const Page& page) {
  const optim::Summary& summary = page.summary;
  Fact optimizer = optimizer_fact(summary), progress = progress_fact(summary);
  if (optimizer.pieces.empty()) progress.label = "optimizer";
  std::vector<Fact> facts = {{"format", {format_words(page)}},
                             trainer_fact(summary.trainer),
                             size_fact(summary),
                             types_fact(summary),
                             ranks_fact(summary),
                             std::move(optimizer),
                             std::move(progress),
                             set_fact(summary),
                             parts_fact(summary),
                             beside_fact(summary.beside),
                             status_fact(summary.status)};
  const bool is_complete = summary.status.health == optim::Health::Complete;
  if (summary.file_of_set && is_complete) facts.back().pieces.front().insert(0, "this file is ");
  std::erase_if(facts, [](const Fact& fact) { return fact.pieces.empty(); });
  return facts;
}

std::vector<std::string> fact_lines(const Fact& fact, size_t width) {
  const std::string indent(kLabelWidth, ' ');
  std::vector<std::string> lines;
  std::string line = fact.label + indent.substr(std::min(fact.label.size(), kLabelWidth));
  bool is_empty = true;
  for (const std::string& piece : pieces_of(fact, width)) {
    const bool fits = display_width(line) + 1 + display_width(piece) <= width;
    if (!is_empty && !fits) {
      lines.push_back(std::move(line));
      line = indent;
      is_empty = true;
    }
    line += (is_empty ? "" : " ") + piece;
    is_empty = false;
  }
  lines.push_back(std::move(line));
  return lines;
}

std::string bar(uint64_t count, uint64_t count_max) {
  if (count_max == 0) return {};
  const double share = static_cast<double>(count) / static_cast<double>(count_max);
  return std::string(static_cast<size_t>(std::lround(share * kBarWidth)), '#');
}

}  // namespace tools::inspect
