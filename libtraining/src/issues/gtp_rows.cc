// Where each stored row belongs, by the writer's arithmetic; then what padding holds.
#include "issues/gtp_rows.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>

#include <ckpt/statistics.h>
#include <optim/lpt_layout.h>

#include "grid/glu_rows.h"
#include "grid/sharing_of_params.h"
#include "issues/issue.h"
#include "layouts/parts/tensor_parts.h"
#include "model/tensor_names.h"
#include "parallel/rank_grid.h"
#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

using Verdict = RepairFinding::Verdict;

constexpr std::string_view kDense = "gtp_weight_remat_size";
constexpr std::string_view kOfExperts = "expert_gtp_weight_remat_size";

uint64_t stated(const FiledState& state, std::string_view name) {
  const auto value = state.args().find(name);
  const bool is_size = value && value->is(Kind::Int) && value->as_int() > 0;
  return is_size ? static_cast<uint64_t>(value->as_int()) : 0;
}

bool is_set(const FiledState& state, std::string_view name) {
  const auto value = state.args().find(name);
  return value && !value->is_none() && !(value->is(Kind::Bool) && !value->as_bool());
}

// Rows without padding, by what is never padded: columns and args. 0: not known.
struct KnownRows {
  std::string_view module;
  bool cuts_rows;  // tensor-parallel ranks share rows, else columns
  uint64_t (*rows)(const FiledState&);
};
uint64_t vocabulary_rows(const FiledState& state) { return stated(state, "padded_vocab_size"); }
uint64_t model_width(const FiledState& state) { return stated(state, "hidden_size"); }
uint64_t attention_rows(const FiledState& state) {
  const uint64_t heads = state.facts.attention_heads;
  const uint64_t groups = state.facts.query_groups.value_or(heads);
  if (is_set(state, "attention_output_gate")) return 0;
  return (heads + 2 * groups) * stated(state, "kv_channels");
}
constexpr std::array kKnownRows = {
    KnownRows{"word_embeddings", true, vocabulary_rows},
    KnownRows{"output_layer", true, vocabulary_rows},
    KnownRows{"self_attention.linear_qkv", true, attention_rows},
    KnownRows{"self_attention.linear_proj", false, model_width},
    KnownRows{"linear_fc1", true, nullptr},  // by the columns of linear_fc2
    KnownRows{"linear_fc2", false, model_width},
};

// How the rows of a tensor are stored.
struct GtpCut {
  uint64_t ranks = 1;   // that share them
  uint64_t shards = 1;  // of each rank's
  uint64_t rows = 0;    // of a shard
  uint64_t own = 0;     // of each rank, without padding
  bool is_gated = false;
  uint64_t padded() const { return rows * shards; }  // of each rank
  bool has_padding() const { return padded() != own; }
};

struct RowRun {
  uint64_t stored = 0, count = 0, place = 0;
};

uint64_t stored_row(const GtpCut& cut, uint64_t rank, uint64_t row) {
  if (!cut.is_gated) return rank * cut.padded() + row;
  const uint64_t half = cut.rows / 2, shard = rank * cut.shards + row / cut.rows;
  const uint64_t in_shard = row % cut.rows;
  const uint64_t before = in_shard < half ? 0 : cut.ranks * cut.shards * half;
  return before + shard * half + in_shard % half;
}

// Of a rank's rows from `begin` to `end`, which lie from `place` on without GTP.
std::vector<RowRun> runs_of(const GtpCut& cut, uint64_t rank, ElementRange rows, uint64_t place) {
  std::vector<RowRun> runs;
  auto [begin, end] = rows;
  const uint64_t step = cut.is_gated ? cut.rows / 2 : cut.rows;
  while (begin < end) {
    const uint64_t count = std::min(end, (begin / step + 1) * step) - begin;
    runs.push_back({stored_row(cut, rank, begin), count, place});
    begin += count, place += count;
  }
  return runs;
}

std::vector<RowRun> own_rows(const GtpCut& cut) {
  std::vector<RowRun> runs;
  const uint64_t section_count = cut.is_gated ? 2 : 1, section = cut.own / section_count;
  for (uint64_t i = 0; i < section_count; ++i) {
    for (uint64_t rank = 0; rank < cut.ranks; ++rank) {
      const uint64_t place = (i * cut.ranks + rank) * section;
      std::ranges::move(runs_of(cut, rank, {i * section, (i + 1) * section}, place),
                        std::back_inserter(runs));
    }
  }
  return runs;
}

// These rows, as a tensor of so many.
TensorEntry rows_in(const TensorEntry& stored, std::span<const RowRun> runs, uint64_t count) {
  TensorEntry tensor = stored;
  tensor.shape[0] = count;
  tensor.chunks.clear();
  for (const Chunk& chunk : stored.chunks) {
    const uint64_t begin = chunk.box.offsets[0], end = begin + chunk.box.sizes[0];
    for (const RowRun& run : runs) {
      const uint64_t from = std::max(begin, run.stored);
      const uint64_t to = std::min(end, run.stored + run.count);
      if (from >= to) continue;
      Box box = chunk.box;
      box.offsets[0] = from;
      box.sizes[0] = to - from;
      Chunk part = part_of(chunk, box, stored.dtype);
      part.box.offsets[0] = run.place + from - run.stored;
      tensor.chunks.push_back(std::move(part));
    }
  }
  return tensor;
}

TensorEntry padding_of(const TensorEntry& stored, const GtpCut& cut, uint64_t rank) {
  return rows_in(stored, runs_of(cut, rank, {cut.own, cut.padded()}, 0), cut.padded() - cut.own);
}

// Whether shards of one size make up the rows; then how many.
std::optional<uint64_t> shard_count(const TensorEntry& tensor) {
  if (tensor.shape.size() != 2 || tensor.chunks.empty()) return std::nullopt;
  const uint64_t size = tensor.chunks[0].box.sizes[0];
  std::set<uint64_t> begins;
  for (const Chunk& chunk : tensor.chunks) {
    if (size == 0 || chunk.box.sizes[0] != size || chunk.box.offsets[0] % size != 0) {
      return std::nullopt;
    }
    begins.insert(chunk.box.offsets[0]);
  }
  return begins.size() * size == tensor.shape[0] ? std::optional(begins.size()) : std::nullopt;
}

// Whether padding to some alignment, a power of two, gives these sizes.
bool is_padded_so(const GtpCut& cut) {
  for (uint64_t alignment = 1; alignment <= cut.rows; alignment *= 2) {
    const uint64_t unit = alignment * cut.shards;
    if ((cut.own + unit - 1) / unit * unit == cut.padded()) return true;
  }
  return false;
}

class Relaying {
 public:
  explicit Relaying(const FiledState& state) : source_(state), result_{} { result_.state = state; }

  WithoutGtp run() {
    if (source_.filed.container != ckpt::Format::TorchDist) {
      throw Error(
          ErrorCode::Unsupported, {.file = {}, .key = "args." + std::string(kDense)},
          "rank files of GTP are not read: shards of one tensor-parallel rank have one name",
          "save in torch_dist");
    }
    for (const TrainedParam& param : source_.params) {
      const std::string& name = param.info.name;
      if (name.find(".linear_fc2.weight") != name.npos && param.weight->shape.size() == 2) {
        inner_width_[std::string(name).replace(name.find(".linear_fc2."), 12, ".linear_fc1.")] =
            param.weight->shape[1];
      }
    }
    for (size_t i = 0; i < source_.params.size(); ++i) relay(i);
    FiledState& state = result_.state;
    ask_for_gating(state);
    for (TrainedParam& param : state.params) {
      const bool is_expert = expert_in(param.info.name).has_value();
      param.sharing = sharing_of_chunks(state, param, tensor_ranks(state.grid.sizes, is_expert));
    }
    ValueTree& tree = state.common.tree;
    const NodeId args = state.args().id();
    for (const std::string_view name : {kDense, kOfExperts}) {
      if (stated(state, name) > 1) tree.put(args, name, tree.integer(1));
    }
    return std::move(result_);
  }

 private:
  const KnownRows* known(const std::string& name) const {
    const auto row = std::ranges::find_if(kKnownRows, [&](const KnownRows& one) {
      const size_t at = name.find(one.module);
      return at != name.npos && name.substr(at + one.module.size()).starts_with(".weight");
    });
    return row == kKnownRows.end() ? nullptr : &*row;
  }

  std::optional<GtpCut> cut_of(const TrainedParam& param) const {
    const std::string& name = param.info.name;
    const bool is_expert = expert_in(name).has_value();
    const auto shards = shard_count(*param.weight);
    const KnownRows* const row = known(name);
    GtpCut cut{.shards = stated(source_, is_expert ? kOfExperts : kDense)};
    const uint32_t ranks = tensor_ranks(source_.grid.sizes, is_expert);
    if (row == nullptr || row->cuts_rows) cut.ranks = ranks;
    const uint64_t all = cut.ranks * cut.shards;
    const bool is_first = row != nullptr && row->rows == nullptr;
    cut.is_gated = is_first && shards == 2 * all && cut.shards > 1;
    const bool is_cut = cut.shards > 1 && (cut.is_gated || shards == all);
    if (row == nullptr) {
      if (is_cut) refuse(name, "of this kind of module");
      return std::nullopt;
    }
    const uint64_t stored = param.weight->shape[0], own = own_rows_of(*row, name, cut);
    const bool has_halves = is_first && 2 * own == stored;
    if (!is_cut && (own == stored || (has_halves && cut.shards == 1))) return std::nullopt;
    if (!is_cut) refuse(name, "where its shards are not those of GTP");
    cut.rows = stored / all;
    cut.own = own / cut.ranks;
    const bool fits = own != 0 && own % cut.ranks == 0 && stored % all == 0 &&
                      cut.padded() >= cut.own && is_padded_so(cut) &&
                      !(cut.is_gated && (cut.rows % 2 != 0 || cut.own % 2 != 0));
    if (!fits) refuse(name, "with the sizes that args state");
    return cut;
  }

  uint64_t own_rows_of(const KnownRows& row, const std::string& name, const GtpCut& cut) const {
    if (row.rows != nullptr) return row.rows(source_);
    const auto width = inner_width_.find(name);
    return width == inner_width_.end() ? 0 : width->second * (cut.is_gated ? 2 : 1);
  }

  [[noreturn]] static void refuse(const std::string& name, std::string_view where) {
    throw Error(
        ErrorCode::Unsupported, {.file = {}, .key = name},
        "GTP has cut its rows, and how many of them are padding is not known " + std::string(where),
        "save without GTP (tensor_parallel_num_weight_shards)");
  }

  void relay(size_t i) {
    const TrainedParam& from = source_.params[i];
    const auto cut = cut_of(from);
    if (!cut) return;
    TrainedParam& to = result_.state.params[i];
    if (!cut->has_padding() && !cut->is_gated) return;
    if (result_.first.empty()) result_.first = from.info.name;
    result_.padded += cut->has_padding();
    result_.halved += cut->is_gated;
    result_.padding_count += cut->ranks * (cut->padded() - cut->own);
    to.weight = relaid(from.weight, *from.weight, *cut, true);
    if (from.master) to.master = relaid(from.master, *from.weight, *cut, false);
    for (StateTensor& state : to.states) {
      state.value = relaid(state.value, *from.weight, *cut, false);
    }
  }

  TensorRef relaid(const TensorRef& stored, const TensorEntry& weight, const GtpCut& cut,
                   bool is_weight) {
    const auto shards = shard_count(*stored);
    if (stored->shape != weight.shape || shards != shard_count(weight)) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = stored->key},
                  "is not cut as its parameter, whose rows GTP has cut",
                  "--model-only carries the weights");
    }
    if (cut.has_padding()) {
      result_.padding.push_back({padding_of(*stored, cut, 0),
                                 padding_of(*stored, cut, cut.ranks - 1), cut.ranks > 1, is_weight,
                                 stored.get()});
    }
    const std::vector<RowRun> runs = own_rows(cut);
    return std::make_shared<TensorEntry>(rows_in(*stored, runs, cut.own * cut.ranks));
  }

  const FiledState& source_;
  WithoutGtp result_;
  std::map<std::string, uint64_t> inner_width_;  // by the name of linear_fc1
};

// --- what padding holds ---

bool is_zero(const TensorEntry& tensor, const OpenedTraining& source) {
  const auto moments = ckpt::make_statistics(tensor, source, {0}).moments;
  return moments && moments->min == 0 && moments->max == 0;
}

constexpr const char* kLoadedShifted =
    "padding of the first tensor-parallel rank has values, that of the last one is 0: the run was "
    "loaded from rows without padding, so that ranks above 0 got rows of their "
    "neighbour (issue 7168 of Megatron-LM)";
constexpr const char* kNoPadding =
    "rows that must be padding have moments, which padding does not have";

// Padding gets no gradient: moments of it are 0. Weights of it are zeros everywhere, or everywhere
// what an initialization left. Zeros at the end alone are what a load leaves behind rows without
// padding, and then the rows before them are not where they belong.
struct PaddingFacts {
  uint64_t compared = 0, right = 0;  // tensors
  std::string first, problem;        // the first that is not right
};
PaddingFacts look_at(const WithoutGtp& rows, const OpenedTraining& source) {
  PaddingFacts facts;
  for (const PaddedTensor& one : rows.padding) {
    const bool is_moment = one.of->key.find("exp_avg") != std::string::npos ||
                           one.of->key.find("momentum") != std::string::npos;
    const bool is_first_zero = is_zero(one.first, source);
    const bool is_last_zero = one.is_shared ? is_zero(one.last, source) : is_first_zero;
    const char* problem = nullptr;
    if (is_moment && !(is_first_zero && is_last_zero)) problem = kNoPadding;
    if (one.is_shared && is_last_zero && !is_first_zero) problem = kLoadedShifted;
    ++facts.compared;
    facts.right += problem == nullptr;
    if (problem == nullptr || !facts.first.empty()) continue;
    facts.first = one.of->key;
    facts.problem = problem;
  }
  return facts;
}

std::string in_words(const WithoutGtp& rows) {
  std::string text;
  if (rows.padded != 0) {
    text = counted(rows.padding_count, "row") + " of " + counted(rows.padded, "weight") +
           (rows.padding_count == 1 ? " is" : " are") +
           " padding of GTP (issue 7168 of Megatron-LM)";
  }
  if (rows.halved != 0) {
    text += (text.empty() ? "" : ", ") + std::string("gate and up of ") +
            counted(rows.halved, "weight") + " are cut in shards of GTP (7161)";
  }
  return text;
}

RepairFinding describe(const std::optional<WithoutGtp>& rows, const OpenedTraining& source) {
  RepairFinding finding{.kind = RepairKind::GtpRows, .text = "no rows are cut by GTP"};
  if (!rows) return finding;
  const PaddingFacts facts = look_at(*rows, source);
  finding.compared_count = facts.compared;
  finding.right_count = facts.right;
  finding.verdict = facts.first.empty() ? Verdict::Mendable : Verdict::NotMendable;
  finding.text = rows->first.empty() ? "rows are cut by GTP, and lie as without it"
                                     : in_words(*rows) + ": laid out as without it";
  if (facts.first.empty()) return finding;
  finding.text = facts.first + " and " + std::to_string(facts.compared - facts.right - 1) +
                 " more: " + facts.problem +
                 ". What was there before is in no file: take a checkpoint from before that load";
  return finding;
}

RepairFinding find_rows(const FiledState& state, const OpenedTraining& source) {
  return describe(without_gtp(state), source);
}

RepairFinding mend_rows(RepairedState& repaired, const OpenedTraining& source,
                        const RepairOptions&) {
  auto rows = without_gtp(repaired.state);
  RepairFinding finding = describe(rows, source);
  if (finding.verdict == Verdict::NotMendable) {
    throw Error(ErrorCode::Corrupt, {.file = source.shown_path(), .key = {}},
                "--repair gtp-rows: " + finding.text);
  }
  if (rows) repaired.state = std::move(rows->state);
  return finding;
}

void refuse_rows(const FiledState& state) {
  const auto rows = without_gtp(state);
  if (!rows || rows->first.empty()) return;
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = rows->first}, in_words(*rows),
              "--repair gtp-rows lays them out as without GTP");
}

void report_rows(const SeenValues& seen, VerifyReport& report) {
  std::optional<WithoutGtp> rows;
  try {
    rows = without_gtp(seen.state);
  } catch (const Error& error) {
    report.not_proven.push_back({"which rows are padding of GTP", error.what()});
    return;
  }
  if (!rows || rows->first.empty()) return;
  const auto& params = seen.state.params;
  const auto first =
      std::ranges::find(params, rows->first, [](const TrainedParam& one) { return one.info.name; });
  const Chunk& chunk = first->weight->chunks.at(0);
  if (!seen.is_own(chunk)) return;
  const auto facts = unless_damaged([&] { return look_at(*rows, seen.checkpoint); });
  const bool is_lost = facts && !facts->first.empty();
  report.find(seen.where(*first->weight, chunk), in_words(*rows) + ", this one among them",
              "ranks of other sizes load them as real rows; ckpt-convert --repair gtp-rows lays "
              "them out as without GTP");
  if (!is_lost) return;
  report.find({.file = {}, .key = facts->first}, facts->problem,
              "what was there before is in no file: take a checkpoint from before that load");
}

}  // namespace

std::optional<WithoutGtp> without_gtp(const FiledState& state) {
  const bool is_used = stated(state, kDense) > 1 || stated(state, kOfExperts) > 1;
  return is_used ? std::optional(Relaying(state).run()) : std::nullopt;
}

const Issue kGtpRows{.kind = RepairKind::GtpRows,
                     .name = "gtp-rows",
                     .find = find_rows,
                     .mend = mend_rows,
                     .refuse = refuse_rows,
                     .report_values = report_rows};

}  // namespace optim
