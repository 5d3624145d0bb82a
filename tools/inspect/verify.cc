// ckpt-inspect verify: is everything there, undamaged, and what it must be? Exit code 1 if not.
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/junit.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <training/verify.h>

#include "inspect/commands.h"
#include "inspect/facts.h"

namespace tools::inspect {
namespace {

using ckpt::ByteLabel;
using ckpt::Severity;

constexpr ByteLabel kLabels[] = {ByteLabel::Checksummed, ByteLabel::Repeated,
                                 ByteLabel::Unprotected, ByteLabel::Padding, ByteLabel::Unclaimed};

struct VerifyOptions {
  std::string path;
  optim::VerifyOptions verify;
  KeyFilter filter;
  ShareOptions share;
  std::string original;  // empty: none
  std::string junit;

  void declare(CLI::App& app) {
    add_place(app, "PATH", path, kAnyCheckpoint);
    add_iteration(app, verify.iteration, verify.limits);
    app.add_flag("--quick", verify.quick, "Check the structure only; read no tensors");
    app.add_flag("--require-checksums", verify.require_checksums,
                 "Treat bytes without a checksum as damage (but not the tracker file)");
    add_value(app, "--allow-nonfinite GLOB", verify.allow_nonfinite,
              "Accept NaN and infinities in tensors whose keys match; repeatable")
        ->allow_extra_args(false);
    add_value(app, "--against OTHER", original,
              "The original of this copy: every file must be the same, byte for byte");
    filter.declare(app);
    declare_junit(app, junit);
    share.declare(app);
    share.declare_piece_size(app);
  }
};

const char* meaning_of(ByteLabel label, bool is_quick) {
  switch (label) {
    case ByteLabel::Checksummed:
      return is_quick ? "has a CRC-32 or a hash of the manifest; not compared"
                      : "covered by a CRC-32 or a hash of the manifest";
    case ByteLabel::Repeated:
      return is_quick ? "stored twice; compared where it was read" : "stored twice; copies match";
    case ByteLabel::Unprotected: return "no checksum: a change could go unnoticed";
    case ByteLabel::Padding: return "never read";
    case ByteLabel::Unclaimed: return "part of nothing in the checkpoint";
  }
  return "";
}

std::string place_text(const ckpt::Where& where) {
  std::string text = ckpt::escaped(where.file);
  if (where.offset_bytes) text += " @" + std::to_string(*where.offset_bytes);
  if (!where.key.empty()) text += " '" + ckpt::escaped(where.key) + "'";
  return text;
}

// Problems and hints quote names themselves: here they are only kept on one line.
std::string one_line(const std::string& text) {
  return ckpt::Error(ckpt::ErrorCode::Corrupt, {}, text).what();
}

void print_findings(Console& console, const optim::VerifyReport& report) {
  for (const ckpt::Finding& finding : report.findings.findings) {
    const bool is_damage = finding.severity == Severity::Damage;
    if (!is_damage && console.options().quiet) continue;
    console.print_text(
        (is_damage ? console.paint(Paint::Red, "damage") : console.paint(Paint::Yellow, "note")) +
        ": " + console.paint(Paint::Bold, place_text(finding.where)) + ": " +
        one_line(finding.problem));
    if (!finding.hint.empty()) {
      console.print_text(console.paint(Paint::Dim, "  " + one_line(finding.hint)));
    }
  }
}

void print_bytes(Console& console, const ckpt::Findings& findings, bool is_quick) {
  Table table({{"BYTES"}, {"", Align::Right}, {.can_shorten = true}});
  for (const ByteLabel label : kLabels) {
    const uint64_t bytes = findings.labelled_bytes(label);
    if (bytes == 0) continue;
    table.add_row({{std::string(name(label)), Paint::Bold},
                   {size_text(bytes)},
                   {meaning_of(label, is_quick), Paint::Dim}});
  }
  table.print(console);
}

uint64_t unprotected_bytes(const ckpt::FileAccount& file) {
  return file.labelled_bytes[static_cast<size_t>(ByteLabel::Unprotected)];
}

void print_unprotected(Console& console, const ckpt::Findings& findings) {
  Table table({{.title = "UNPROTECTED", .can_shorten = true}, {"", Align::Right}, {}});
  for (const ckpt::FileAccount& file : findings.files) {
    if (unprotected_bytes(file) == 0) continue;
    table.add_row({{ckpt::escaped(file.path), Paint::Bold},
                   {size_text(unprotected_bytes(file))},
                   {"of " + size_text(file.count_bytes), Paint::Dim}});
  }
  console.out() << '\n';
  table.print(console);
}

// What lies beside a plain checkpoint, and how it was read.
void print_beside(Console& console, const ckpt::Findings& findings) {
  Table table({{.title = "BESIDE", .can_shorten = true}, {"", Align::Right}, {}});
  for (const ckpt::FileAccount& file : findings.files) {
    if (file.beside.empty()) continue;
    table.add_row({{ckpt::escaped(file.path), Paint::Bold},
                   {size_text(file.file_bytes)},
                   {file.beside, Paint::Dim}});
  }
  table.print_apart(console);
}

void print_left_out(Console& console, const char* how, const std::vector<optim::NotChecked>& list) {
  for (const auto& [what, reason] : list) {
    console.print_text(console.paint(Paint::Yellow, how) + ": " + what + ": " + reason);
  }
}

// "815 checksums OK", "814 of 815 checksums OK".
std::string passed_text(uint64_t passed, uint64_t count, const char* thing, const char* verdict) {
  const std::string of_all = passed == count ? "" : std::to_string(passed) + " of ";
  return of_all + count_text(count, thing) + " " + verdict;
}

std::vector<std::string> passed_checks(const optim::VerifyReport& report) {
  const ckpt::Findings& findings = report.findings;
  std::vector<std::string> checks;
  const auto add = [&](uint64_t passed, uint64_t count, const char* thing, const char* verdict) {
    if (count != 0) checks.push_back(passed_text(passed, count, thing, verdict));
  };
  add(findings.compared_checksums - findings.failed_checksums, findings.compared_checksums,
      "checksum", "OK");
  add(report.matching_master_count, report.master_count, "master",
      report.master_count == 1 ? "matches its weight" : "match their weights");
  add(report.sound_state_count, report.state_count, "state tensor", "finite");
  const bool has_states = report.state_count != 0 || report.master_count != 0;
  add(report.sound_tensor_count, report.tensor_count, has_states ? "other tensor" : "tensor",
      "finite");
  if (report.group_count != 0) {
    checks.push_back(count_text(report.group_count, "parameter group") + " checked");
  }
  add(report.kept_state_count, report.promised_state_count, "promised count", "OK");
  if (report.has_promised_digest) checks.push_back("the logical hash is the promised one");
  return checks;
}

void print_checks(Console& console, const optim::VerifyReport& report) {
  const char* separator = console.screen().is_utf8 ? " \xC2\xB7 " : ", ";
  const std::string text = joined(passed_checks(report), separator);
  console.out() << '\n';
  if (!text.empty()) console.print_text(text);
  print_left_out(console, "not checked", report.not_checked);
  print_left_out(console, "not proven", report.not_proven);
}

uint64_t total_bytes(const ckpt::Findings& findings) {
  uint64_t total = 0;
  for (const ckpt::FileAccount& file : findings.files) total += file.count_bytes;
  return total;
}

uint64_t damage_count(const ckpt::Findings& findings) {
  const auto count =
      std::ranges::count(findings.findings, Severity::Damage, &ckpt::Finding::severity);
  return static_cast<uint64_t>(count);
}

std::string scope_text(const ckpt::Findings& findings, ckpt::Share share) {
  const std::string files = count_text(findings.file_count, "file");
  if (share.world_size == 1) return files;
  return share_text(share) + ", " + std::to_string(findings.files.size()) + " of " + files;
}

// "; not checked: this, that", for the verdict.
std::string left_out_text(const char* how, const std::vector<optim::NotChecked>& list) {
  if (list.empty()) return {};
  return "; " + std::string(how) + ": " + joined(list, ", ", &optim::NotChecked::what);
}

void print_report(Console& console, const optim::VerifyReport& report,
                  const optim::VerifyOptions& options) {
  const ckpt::Findings& findings = report.findings;
  print_findings(console, report);
  if (console.options().quiet) return;
  if (!findings.findings.empty()) console.out() << '\n';
  if (!findings.files.empty()) print_bytes(console, findings, options.quick);
  if (findings.labelled_bytes(ByteLabel::Unprotected) != 0) print_unprotected(console, findings);
  print_beside(console, findings);
  print_checks(console, report);
  std::string verdict =
      findings.damaged() ? console.paint(Paint::Red, "damaged") : console.paint(Paint::Green, "OK");
  if (findings.damaged()) {
    verdict += ": " + count_text(damage_count(findings), "problem") + "; checked";
  }
  verdict += ": " + scope_text(findings, options.share) + ", " + size_text(total_bytes(findings));
  const uint64_t unprotected = findings.labelled_bytes(ByteLabel::Unprotected);
  if (unprotected != 0 && findings.labelled_bytes(ByteLabel::Checksummed) == 0) {
    verdict += "; none of it has a checksum";
  }
  if (report.allowed_value_count != 0) {
    verdict += "; allowed: " + count_text(report.allowed_value_count, "NaN or infinite value") +
               " in " + count_text(report.allowed_tensor_count, "tensor");
  }
  console.print_text(verdict + left_out_text("not checked", report.not_checked) +
                     left_out_text("not proven", report.not_proven));
}

nlohmann::json piece_json(const ckpt::ByteRange& piece) {
  return {{"offset_bytes", piece.offset_bytes}, {"count_bytes", piece.count_bytes}};
}

nlohmann::json file_json(const ckpt::FileAccount& file) {
  nlohmann::json labels = nlohmann::json::object();
  for (const ByteLabel label : kLabels) {
    labels[std::string(name(label))] = file.labelled_bytes[static_cast<size_t>(label)];
  }
  nlohmann::json json = {{"path", json_text(file.path)},
                         {"bytes", file.count_bytes},
                         {"file_bytes", file.file_bytes},
                         {"pieces", json_list(file.pieces, piece_json)},
                         {"labels", labels},
                         {"in_manifest", file.has_manifest_hash}};
  if (!file.beside.empty()) json["beside"] = file.beside;
  return json;
}

nlohmann::json copy_json(const std::string& original, const ckpt::CopyReport& copy) {
  return {{"path", json_text(original)},
          {"files", copy.file_count},
          {"bytes", copy.count_bytes},
          {"hard_links", copy.linked_count},
          {"differences",
           json_list(copy.differences, [](const ckpt::CopyDifference& each) -> nlohmann::json {
             return {{"file", json_text(each.file)}, {"problem", each.problem}};
           })}};
}

// Below the verdict of verify: whether it is what it was copied from.
void print_copy(Console& console, const ckpt::CopyReport& copy) {
  for (const auto& [file, problem] : copy.differences) {
    console.print_text(console.paint(Paint::Red, "different") + ": " +
                       console.paint(Paint::Bold, ckpt::escaped(file)) + ": " + problem);
  }
  if (console.options().quiet) return;
  const std::string other = ckpt::escaped(copy.original.string());
  if (!copy.differences.empty()) {
    console.print_text(console.paint(Paint::Red, "different") + ": " +
                       count_text(copy.differences.size(), "file") + " not as in " + other);
    return;
  }
  std::string text = ": " + count_text(copy.file_count, "file") + ", " +
                     size_text(copy.count_bytes) + ", byte for byte as in " + other;
  if (copy.linked_count != 0) {
    text += "; " + std::to_string(copy.linked_count) +
            " of them are hard links to the same bytes, and no copies";
  }
  console.print_text(console.paint(Paint::Green, "same") + text);
}

void refuse_against_a_part(const VerifyOptions& options) {
  if (options.original.empty()) return;
  const auto refuse = [](const std::string& with) {
    refuse_usage("--against compares all bytes, and cannot be combined with " + with,
                 "ckpt-inspect diff compares a selection, and what two checkpoints mean");
  };
  if (options.verify.quick) refuse("--quick");
  if (!options.filter.is_everything()) refuse("--include and --exclude");
  if (options.share.share().world_size != 1) refuse("several processes");
}

void print_report_as_json(Console& console, const optim::VerifyReport& report,
                          const optim::VerifyOptions& options, const nlohmann::json& against) {
  nlohmann::json document = json_document();
  document["format"] = name(report.format);
  if (report.iteration) document["iteration"] = *report.iteration;
  if (options.share.world_size != 1) {
    document["share"] = share_json(options.share);
    document["share"]["piece_bytes_min"] = options.share.piece_bytes_min;
  }
  document["files"] = json_list(report.findings.files, file_json);
  document.update(verify_json(report, options.quick));
  if (!against.is_null()) document["against"] = against;
  print_json(console, document);
}

// One that passed, or each thing that is wrong.
std::vector<JunitCase> cases_of(const std::string& path, const optim::VerifyReport& report,
                                const std::optional<ckpt::CopyReport>& copy) {
  std::vector<JunitCase> cases;
  for (const ckpt::Finding& finding : report.findings.findings) {
    if (finding.severity != Severity::Damage) continue;
    cases.push_back({place_text(finding.where), one_line(finding.problem), finding.hint});
  }
  if (copy) {
    for (const auto& [file, problem] : copy->differences) cases.push_back({file, problem});
  }
  if (cases.empty()) cases.push_back({path});
  return cases;
}

int verify_one(const VerifyOptions& options, Console& console, std::vector<JunitCase>& cases) {
  refuse_against_a_part(options);
  optim::VerifyOptions verify_options = options.verify;
  verify_options.share = options.share.share();
  verify_options.selection = options.filter.selection();
  optim::VerifyReport report;
  std::optional<ckpt::CopyReport> copy;
  try {
    ProgressLine line(console, "verifying");
    line.leave_terminal_if(options.share.distributed && verify_options.share.rank != 0);
    verify_options.execution = make_execute_options(console, line);
    if (!options.original.empty()) {
      copy = optim::compare_copies(options.path, options.original, verify_options);
    }
    report = optim::verify(options.path, verify_options);
  } catch (const ckpt::Error&) {  // a copy that cannot be read is different as well
    if (copy && !console.options().json) print_copy(console, *copy);
    throw;
  }
  if (console.options().json) {
    print_report_as_json(console, report, verify_options,
                         copy ? copy_json(options.original, *copy) : nlohmann::json());
  } else {
    print_report(console, report, verify_options);
    if (copy) print_copy(console, *copy);
  }
  cases = cases_of(options.path, report, copy);
  const bool is_different = copy && !copy->differences.empty();
  return report.findings.damaged() || is_different ? 1 : 0;
}

int run(const VerifyOptions& options, Console& console) {
  return with_junit({options.junit, "ckpt-inspect verify", options.path},
                    [&](auto& cases) { return verify_one(options, console, cases); });
}

}  // namespace

Command make_verify_command() {
  return make_command<VerifyOptions>(
      {.name = "verify",
       .description = "Checks structure, every checksum and the optimizer state.",
       .examples = {"ckpt-inspect verify ckpt/", "ckpt-inspect verify ckpt/iter_0000003 --quick",
                    "ckpt-inspect verify copy/ --against ckpt/"},
       .quiet = "Damage alone",
       .exit_1 = "damaged, or not the same as --against",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect
