// What a conversion ends with.
#include "common/conversion.h"

#include <algorithm>
#include <ranges>
#include <span>
#include <unordered_map>
#include <utility>

#include <ckpt/error.h>
#include <common/console.h>
#include <common/json.h>
#include <common/table.h>
#include <common/text.h>

namespace tools {
namespace {

using nlohmann::json;

json losses_json(const std::vector<ckpt::NotCarried>& losses) {
  return json_list(losses, [](const ckpt::NotCarried& lost) -> json {
    return {{"what", json_text(lost.what)},
            {"reason", json_text(lost.reason)},
            {"changed", lost.is_changed}};
  });
}

json ambiguous_json(const std::vector<optim::AmbiguousParam>& params) {
  return json_list(params, [](const optim::AmbiguousParam& param) -> json {
    return {{"key", json_text(param.name)},
            {"also_fits", json_texts(param.also_fits)},
            {"also_fits_count", param.also_fits_count}};
  });
}

// By Outcome.
constexpr const char* kOutcomes[] = {"planned", "part_written", "published", "already_published"};

// What is known of every published result.
struct Proven {
  bool content;  // opened again: names, types, shapes and objects are those of what was carried
  bool values;   // and the values of tensors, read back
  bool masters;  // each float32 master rounds to the weight of its parameter
  bool whole;    // all of the source was carried, and nothing in another form
};

Proven proven_by(const optim::ConvertReport& report) {
  const bool is_published = report.outcome == ckpt::Outcome::Published;
  return {is_published, is_published && report.verified_bytes != 0, report.masters_proven,
          report.not_carried.empty() && report.left_out_count == 0 && report.casts.empty() &&
              report.computed.empty()};
}

// Of each state: the elements in the source and in the result.
json conservation_json(const optim::ConvertReport& report) {
  json list = json::array();
  for (size_t i = 0; i < report.states.size(); ++i) {
    const optim::StateCount& count = report.states[i];
    list.push_back({{"state", json_text(count.state)},
                    {"experts", count.is_of_experts},
                    {"tensors", count.tensor_count},
                    {"source_elements", report.source_states[i].element_count},
                    {"elements", count.element_count}});
  }
  return list;
}

json continuation_json(const optim::Continuation& continuation) {
  constexpr const char* kNames[] = {"same", "order_of_sums", "different"};
  return {{"next_step", kNames[static_cast<size_t>(continuation.next_step)]},
          {"reasons", json_texts(continuation.reasons)}};
}

json grid_json(const optim::RunGrid& grid) {
  const optim::ParallelSizes& sizes = grid.sizes;
  json document = {{"tensor_parallel", sizes.tensor_parallel},
                   {"pipeline_parallel", sizes.pipeline_parallel},
                   {"virtual_pipeline_parallel", sizes.virtual_pipeline_parallel},
                   {"context_parallel", sizes.context_parallel},
                   {"data_parallel", sizes.data_parallel},
                   {"expert_parallel", sizes.expert_parallel},
                   {"expert_tensor_parallel", sizes.expert_tensor_parallel},
                   {"expert_data_parallel", sizes.expt_dp()},
                   {"world_size", sizes.world()}};
  const std::string& layout = grid.pipeline.pipeline_model_parallel_layout;
  if (!layout.empty()) document["pipeline_layout"] = json_text(layout);
  return document;
}

json report_json(const ConversionOptions& options, const optim::ConvertReport& report) {
  json document = json_document();
  document["destination"] = json_text(options.target());
  document["linked_bytes"] = report.linked_bytes;
  document["dry_run"] = options.dry_run;
  document["outcome"] = kOutcomes[static_cast<size_t>(report.outcome)];
  document["kept_bytes"] = report.kept_bytes;
  document["verified_bytes"] = report.verified_bytes;
  document["source_format"] = name(report.source_format);
  document["target_format"] = name(report.target_format);
  if (!report.names.empty()) document["names"] = json_text(report.names);
  document["payload_bytes"] = report.plan.payload_bytes;
  document["total_bytes"] = report.plan.total_bytes;
  if (options.dry_run) document["peak_memory_bytes"] = report.peak_memory_bytes;
  document["files"] = json_list(report.plan.files, [](const ckpt::PlannedFile& file) -> json {
    return {{"path", json_text(file.path)}, {"bytes", file.count_bytes}};
  });
  if (report.carried) {
    document["carried"] = {{"tensors", report.carried->tensor_count},
                           {"objects", report.carried->object_count}};
  }
  const Proven proven = proven_by(report);
  document["proven"] = {{"content", proven.content},
                        {"values", proven.values},
                        {"masters", proven.masters},
                        {"equal_to_source", proven.values && proven.whole}};
  if (!report.repairs.empty()) document["repairs"] = repairs_json(report.repairs);
  document["left_out"] = {{"keys", report.left_out_count}};
  document["not_carried"] = losses_json(report.not_carried);
  document["warnings"] = json_texts(report.warnings);
  if (report.layer_wise) {
    document["source_data_parallel_size"] = report.source_grid.sizes.data_parallel;
    document["target_data_parallel_size"] = report.target_grid.sizes.data_parallel;
    document["source_grid"] = grid_json(report.source_grid);
    document["target_grid"] = grid_json(report.target_grid);
    document["ambiguous"] = ambiguous_json(report.ambiguous);
    if (!report.not_proven.empty()) document["not_proven"] = json_texts(report.not_proven);
    if (!report.states.empty()) document["conservation"] = conservation_json(report);
    if (report.continuation) document["continuation"] = continuation_json(*report.continuation);
  }
  return document;
}

void print_files(const ckpt::Plan& plan, Console& console) {
  Table table({{.title = "file", .can_shorten = true}, {"bytes", Align::Right}});
  for (const ckpt::PlannedFile& file : plan.files) {
    const std::string path = file.path.empty() ? "(the file)" : file.path;
    table.add_row({{ckpt::escaped(path)}, {size_text(file.count_bytes)}});
  }
  table.print(console);
}

const char* opening_of(ckpt::Outcome outcome, bool is_share) {
  switch (outcome) {
    case ckpt::Outcome::Planned: return "would write ";
    case ckpt::Outcome::PartWritten: return "wrote this process's part of ";
    case ckpt::Outcome::Published: return "wrote ";
    case ckpt::Outcome::AlreadyPublished:
      return is_share ? "nothing to do, the processes of this share wrote "
                      : "nothing to do, an earlier run wrote ";
  }
  return "";
}

// "torch_dist -> huggingface (llama, ...)".
std::string formats_text(const optim::ConvertReport& report) {
  const std::string from(name(report.source_format));
  const std::string to(report.fsdp_dtensor ? "fsdp_dtensor"
                       : report.torch_dcp  ? "torch_dcp"
                       : report.rank_files ? "rank_files"
                                           : name(report.target_format));
  if (report.names.empty()) return from + " -> " + to;
  const std::string folder =
      (report.peft ? "peft (" : "huggingface (") + ckpt::escaped(report.names) + ")";
  const bool is_export = report.target_format == ckpt::Format::Safetensors;
  return is_export ? from + " -> " + folder : folder + " -> " + to;
}

std::string opening_text(const ConversionOptions& options, const optim::ConvertReport& report) {
  const bool is_share = options.share.share().world_size > 1;
  std::string text = opening_of(report.outcome, is_share) + ckpt::escaped(options.target()) + ": " +
                     formats_text(report);
  if (report.layer_wise && report.names.empty() && !report.fsdp_dtensor && !report.torch_dcp) {
    text += ", data parallel " + std::to_string(report.source_grid.sizes.data_parallel) + " -> " +
            std::to_string(report.target_grid.sizes.data_parallel);
  }
  text += ", " + count_text(report.plan.files.size(), "file") + ", " +
          size_text(report.plan.total_bytes);
  if (report.peak_memory_bytes != 0) {
    text += ", about " + size_text(report.peak_memory_bytes) + " of memory";
  }
  return text;
}

void print_bytes(Console& console, const ConversionOptions& options,
                 const optim::ConvertReport& report) {
  if (report.outcome == ckpt::Outcome::PartWritten) {
    console.print_text("this part: " + size_text(report.stats.written_bytes + report.kept_bytes));
  }
  if (report.kept_bytes != 0) {
    console.print_text("kept " + size_text(report.kept_bytes) + " of an interrupted run");
  }
  if (report.linked_bytes != 0) {
    console.print_text((options.dry_run ? "would link " : "linked ") +
                       size_text(report.linked_bytes) + " of the source");
  }
}

// "weight 4096 -> 8192, fp32_param 4096 -> 8192, exp_avg 96".
std::string counts_text(const optim::ConvertReport& report, bool of_experts) {
  std::string text;
  for (size_t i = 0; i < report.states.size(); ++i) {
    const optim::StateCount &from = report.source_states[i], &to = report.states[i];
    if (to.is_of_experts != of_experts) continue;
    text += (text.empty() ? "" : ", ") + ckpt::escaped(to.state) + " ";
    if (from.element_count != to.element_count) text += std::to_string(from.element_count) + " -> ";
    text += std::to_string(to.element_count);
  }
  return text;
}

void print_conservation(Console& console, const optim::ConvertReport& report) {
  if (!report.not_proven.empty()) return;  // which is said among the losses
  const std::string others = counts_text(report, false), experts = counts_text(report, true);
  const bool is_cut =
      !std::ranges::equal(report.states, report.source_states, std::ranges::greater_equal(),
                          &optim::StateCount::element_count, &optim::StateCount::element_count);
  const std::string match = is_cut ? "match but for the rows left out: " : "match: ";
  if (!others.empty()) console.print_text("proven: element counts " + match + others);
  if (!experts.empty()) console.print_text("proven: element counts of experts " + match + experts);
}

void print_continuation(Console& console, const optim::ConvertReport& report) {
  if (!report.continuation) return;
  std::string text = "next training step: ";
  switch (report.continuation->next_step) {
    case optim::NextStep::Same: text += "matches the source's, bit for bit"; break;
    case optim::NextStep::OrderOfSums:
      text += "matches the source's, up to floating-point summation order";
      break;
    case optim::NextStep::Different: text += "will differ from the source's"; break;
  }
  const auto& reasons = report.continuation->reasons;
  if (!reasons.empty()) text += ": " + joined(reasons, "; ");
  console.print_text(text);
}

void print_proven(Console& console, const optim::ConvertReport& report) {
  const Proven proven = proven_by(report);
  const bool is_mended = std::ranges::any_of(report.repairs, [](const auto& repair) {
    return repair.verdict == optim::RepairFinding::Verdict::Mendable;
  });
  std::string source = is_mended ? "the repaired source" : "the source";
  if (!report.computed.empty()) source = report.computed;
  const std::string types = report.casts.empty() ? "" : ", in the requested types";
  source += types;
  if (!report.names.empty() && report.layer_wise && proven.content) {
    const std::string read = "proven: read back " + size_text(report.verified_bytes);
    console.print_text(
        (proven.values ? read + ": each tensor has the values of the source that its table gives it"
                       : "proven: opened again; each tensor has the name, type and shape that its "
                         "table gives it") +
        types);
  } else if (proven.values) {
    console.print_text("proven: read back " + size_text(report.verified_bytes) +
                       ": as written, passes verify, " +
                       (proven.whole ? "equal to " + source
                                     : "with all values that were carried as in " + source));
  } else if (proven.content) {
    console.print_text(
        "proven: opened again; what was carried has the names, types, shapes and objects of " +
        source);
  } else if (report.verified_bytes != 0) {
    console.print_text("read back " + size_text(report.verified_bytes) + ": as written");
  }
  if (proven.masters) {
    console.print_text("proven: every float32 master " +
                       std::string(report.left_out_count == 0 ? "" : "of the source ") +
                       "rounds to the weight of its parameter");
  }
}

// Those of one reason together, in the order in which the reasons come.
struct LossGroup {
  const ckpt::NotCarried& first;
  std::vector<std::string> names;
};

std::vector<LossGroup> group_losses(const std::vector<ckpt::NotCarried>& losses, bool is_changed) {
  std::vector<LossGroup> groups;
  std::unordered_map<std::string_view, size_t> by_reason;
  for (const ckpt::NotCarried& lost : losses) {
    if (lost.is_changed != is_changed) continue;
    const auto [group, is_new] = by_reason.try_emplace(lost.reason, groups.size());
    if (is_new) groups.push_back({lost, {}});
    groups[group->second].names.push_back(ckpt::escaped(lost.what));
  }
  return groups;
}

void print_loss_group(Console& console, const std::string& title, const LossGroup& group) {
  constexpr size_t kShown = 3;
  const size_t count = group.names.size();
  const std::string reason = ": " + group.first.reason;
  if (count == 1 || console.options().verbose) {
    for (const std::string& name : group.names) console.print_text(title + name + reason);
    return;
  }
  const std::string text = title + std::to_string(count) + " entries (" +
                           joined(std::views::take(group.names, kShown), ", ");
  console.print_text(text + (count > kShown ? ", ...; -v lists all)" : ")") + reason);
}

void print_ambiguous(Console& console, const std::vector<optim::AmbiguousParam>& params) {
  constexpr size_t kShown = 20;
  const size_t count = console.options().verbose ? params.size() : std::min(params.size(), kShown);
  for (const optim::AmbiguousParam& param : std::span(params).first(count)) {
    console.print_text("not proven by content: " + ckpt::escaped(param.name) +
                       ": its master rounds to the weight of " + ckpt::escaped(param.also_fits[0]) +
                       (param.also_fits_count > 1 ? " and others" : "") + ", too");
  }
  if (count == params.size()) return;
  console.print_text("not proven by content: " +
                     count_text(params.size() - count, "more parameter") + "; -v lists all");
}

void print_losses(Console& console, const ConversionOptions& options,
                  const optim::ConvertReport& report) {
  if (const uint64_t count = report.left_out_count) {
    const bool is_chosen = report.names.empty() || report.layer_wise;
    console.print_text((options.model_only ? "left out by --model-only: "
                        : is_chosen        ? "left out by --include/--exclude: "
                                           : "left out: ") +
                       count_text(count, "key"));
  }
  for (const LossGroup& group : group_losses(report.not_carried, false)) {
    print_loss_group(console, "not carried: ", group);
  }
  for (const LossGroup& group : group_losses(report.not_carried, true)) {
    print_loss_group(console, "changed: ", group);
  }
  print_ambiguous(console, report.ambiguous);
  for (const std::string& line : report.not_proven) {
    console.print_text("not proven: " + line);
  }
}

void print_report(Console& console, const ConversionOptions& options,
                  const optim::ConvertReport& report) {
  if (console.options().quiet) return print_losses(console, options, report);
  if (options.dry_run || console.options().verbose) print_files(report.plan, console);
  console.print_text(opening_text(options, report));
  print_bytes(console, options, report);
  print_mended(report.repairs, console);
  if (report.carried) {
    console.print_text("carried: " + count_text(report.carried->tensor_count, "stored tensor") +
                       ", " + count_text(report.carried->object_count, "object") + ", " +
                       size_text(report.plan.payload_bytes) + " of data");
  }
  print_losses(console, options, report);
  const bool is_there =
      report.outcome != ckpt::Outcome::Planned && report.outcome != ckpt::Outcome::PartWritten;
  if (report.not_carried.empty()) {
    console.print_text(
        std::string(report.left_out_count == 0 ? "everything " : "everything else ") +
        (is_there ? "was carried" : "will be carried"));
  }
  const bool is_of_one_source = report.computed.empty();
  if (!report.layer_wise && is_of_one_source && report.target_format != ckpt::Format::Safetensors) {
    console.print_text("a plain state dict: Megatron does not resume training from it");
  }
  print_proven(console, report);
  print_conservation(console, report);
  print_continuation(console, report);
}

}  // namespace

void print_conversion(Console& console, const ConversionOptions& options,
                      const optim::ConvertReport& report) {
  console.options().json ? print_json(console, report_json(options, report))
                         : print_report(console, options, report);
}

}  // namespace tools
