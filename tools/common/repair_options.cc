// --repair: what is said of it, and what it says.
#include "common/repair_options.h"

#include <algorithm>

#include <ckpt/error.h>
#include <common/console.h>
#include <common/table.h>
#include <common/text.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

using nlohmann::json;
using optim::RepairFinding;
using optim::RepairKind;
using Verdict = RepairFinding::Verdict;

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const RepairKind kind : optim::kRepairKinds) names.emplace_back(optim::name(kind));
  return names;
}

std::string kinds_text(const std::string& separator) {
  std::string all;
  for (const std::string& name : kind_names()) all += (all.empty() ? "" : separator) + name;
  return all;
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

const CLI::Validator kKinds(
    [](std::string& text) {
      const std::vector<std::string> names = kind_names();
      for (const std::string& part : parts_of(text)) {
        if (std::ranges::find(names, part) != names.end()) continue;
        return "'" + ckpt::escaped(part) + "' is not a kind of repair: " + kinds_text(", ") +
               did_you_mean(part, names);
      }
      return std::string();
    },
    "");

// By Verdict.
constexpr const char* kVerdicts[] = {"sound", "mendable", "not_mendable"};
constexpr const char* kShownVerdicts[] = {"nothing to repair", "can be repaired",
                                          "cannot be repaired"};

void print_lost(const RepairFinding& repair, Console& console) {
  if (repair.lost.empty()) return;
  Table table({{.title = "lost masters and moments of", .can_shorten = true},
               {"elements", Align::Right},
               {"of", Align::Right}});
  for (const optim::LostElements& lost : repair.lost) {
    table.add_row({{ckpt::escaped(lost.param)},
                   {std::to_string(lost.lost_count)},
                   {std::to_string(lost.element_count)}});
  }
  table.print(console);
}

}  // namespace

void declare_repair(CLI::App& app, optim::RepairOptions& repair, bool& lists) {
  const auto choose = [&repair, &lists](const std::string& text) {
    if (text.empty()) {
      lists = true;
      return;
    }
    for (const std::string& part : parts_of(text)) {
      for (const RepairKind kind : optim::kRepairKinds) {
        if (part == optim::name(kind) && !repair.wants(kind)) repair.kinds.push_back(kind);
      }
    }
  };
  const char* group = "Repair";
  app.add_option_function<std::string>("--repair", choose,
                                       "Repair known kinds of damage. Without KIND: list what can "
                                       "be repaired, and how certain that is, and write nothing")
      ->expected(0, 1)
      ->check(kKinds)
      ->option_text("[" + kinds_text(",") + "]")
      ->group(group);
  app.add_flag("--accept-loss", repair.accept_loss,
               "Repair even where elements are lost: masters become the weights, moments 0")
      ->group(group);
  app.add_option("--like", repair.like, "For common-state: the checkpoint to take it from")
      ->option_text("OTHER")
      ->group(group);
}

json repairs_json(const std::vector<RepairFinding>& repairs) {
  const auto lost_json = [](const optim::LostElements& lost) -> json {
    return {{"parameter", json_text(lost.param)},
            {"elements", lost.lost_count},
            {"of", lost.element_count}};
  };
  return json_list(repairs, [&](const RepairFinding& repair) -> json {
    return {{"kind", optim::name(repair.kind)},
            {"verdict", kVerdicts[static_cast<size_t>(repair.verdict)]},
            {"text", json_text(repair.text)},
            {"compared", repair.compared_count},
            {"right", repair.right_count},
            {"lost", json_list(repair.lost, lost_json)}};
  });
}

void print_repairs(const std::vector<RepairFinding>& found, const std::string& source,
                   Console& console) {
  if (console.options().json) {
    json document = json_document();
    document["source"] = json_text(source);
    document["repairs"] = repairs_json(found);
    return print_json(console, document);
  }
  std::string kinds;
  bool has_losses = false, needs_other = false;
  for (const RepairFinding& repair : found) {
    console.print_text(std::string(optim::name(repair.kind)) + ": " +
                       kShownVerdicts[static_cast<size_t>(repair.verdict)] + ": " +
                       ckpt::escaped(repair.text));
    print_lost(repair, console);
    if (repair.verdict != Verdict::Mendable) continue;
    kinds += (kinds.empty() ? "" : ",") + std::string(optim::name(repair.kind));
    has_losses |= !repair.lost.empty();
    needs_other |= repair.kind == RepairKind::CommonState;
  }
  if (kinds.empty()) return;
  console.print_text("repair it with --repair " + kinds + (has_losses ? " --accept-loss" : "") +
                     (needs_other ? " --like OTHER" : ""));
}

void print_mended(const std::vector<RepairFinding>& repairs, Console& console) {
  for (const RepairFinding& repair : repairs) {
    const bool is_mended = repair.verdict == Verdict::Mendable;
    console.print_text("repair " + std::string(optim::name(repair.kind)) + ": " +
                       (is_mended ? "" : "nothing to repair: ") + ckpt::escaped(repair.text));
    print_lost(repair, console);
  }
}

}  // namespace tools
