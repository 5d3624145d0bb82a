#include <training/contents.h>
#include <training/megatron_folders.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "grid/target_groups.h"
#include "issues/overwritten_ranks.h"
#include "state/not_checked.h"
#include "state/words.h"
#include "verify/checks.h"
#include "verify/state_check.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

// A file that the checkpoint names and that is missing makes the checkpoint corrupt; a path that is
// not there does not.
OpenedTraining open(const fs::path& path, const VerifyOptions& options) {
  try {
    ckpt::Limits limits = options.limits;
    limits.allow_missing_data = true;  // what is missing is found, and the rest is checked
    return open_checkpoint(path, {.iteration = options.iteration, .limits = limits});
  } catch (const ckpt::Error& error) {
    const bool is_inside = error.code() == ckpt::ErrorCode::NotFound &&
                           ckpt::kind_at(path) != ckpt::EntryKind::Absent &&
                           !error.where().file.empty() && error.where().file.front() != '/' &&
                           !fs::path(error.where().file).has_root_path() &&
                           !error.where().file.starts_with(path.string());
    if (!is_inside) throw;
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, error.where(), error.problem(),
                      "the checkpoint refers to this file");
  }
}

// Of two checks that find the same the one that knows more: whose bytes a checksum covers knows
// their key; what a check of meaning could not read is the structure's.
bool knows_more(const ckpt::Finding& a, const ckpt::Finding& b) {
  const auto rank = [](const ckpt::Finding& finding) {
    if (finding.check == ckpt::CheckKind::Content) return 0;
    return finding.check == ckpt::CheckKind::Structure ? 1 : 2;
  };
  return rank(a) < rank(b);
}

// What several checks find of one place is told once.
void drop_repeated(std::vector<ckpt::Finding>& sorted) {
  using Place = std::tuple<std::string, uint64_t, std::string, std::string>;
  std::map<Place, size_t> places;
  std::vector<ckpt::Finding> kept;
  for (ckpt::Finding& finding : sorted) {
    const ckpt::Where& where = finding.where;
    const Place place{where.file, where.offset_bytes.value_or(UINT64_MAX),
                      where.offset_bytes ? "" : where.key, finding.problem};
    const auto [known, is_new] = places.emplace(place, kept.size());
    if (is_new) {
      kept.push_back(std::move(finding));
    } else if (knows_more(finding, kept[known->second])) {
      kept[known->second] = std::move(finding);
    }
  }
  sorted = std::move(kept);
}

// A file whose hash is wrong, and in which the damage was found, is one finding.
void drop_explained_hashes(std::vector<ckpt::Finding>& findings) {
  std::set<std::string> explained;
  for (ckpt::Finding& finding : findings) {
    const bool is_place =
        finding.severity == ckpt::Severity::Damage && finding.where.offset_bytes.has_value();
    if (is_place) explained.insert(finding.where.file);
  }
  std::erase_if(findings, [&](const ckpt::Finding& finding) {
    return finding.is_file_hash && explained.contains(finding.where.file);
  });
}

// Of what a quick look would not have looked at either.
bool is_about_values(const NotChecked& left) {
  return left.what != kOwners && left.what != kRankFiles;
}

// What is said of the whole is the first process's.
void drop_what_the_first_says(VerifyReport& report) {
  report.findings.findings.clear();
  report.not_checked.clear();
  report.not_proven.clear();
  report.group_count = 0;
}

// Of a checkpoint that cannot be opened.
VerifyReport report_alone(ckpt::Finding finding, const VerifyOptions& options) {
  VerifyReport report;
  report.iteration = options.iteration;
  if (options.share.rank != 0) return report;
  report.findings.findings.push_back(std::move(finding));
  report.not_checked.push_back({"all other files", "the checkpoint cannot be opened"});
  return report;
}

// What .metadata says of one tensor cannot be: chunks that leave holes or overlap. The rest of it
// was read, so that this is damage of a checkpoint and not a file that cannot be read.
bool is_damage_of_tensor(const ckpt::Error& error) {
  return error.code() == ckpt::ErrorCode::Corrupt && error.where().file.ends_with(".metadata") &&
         !error.where().key.empty() && !error.where().offset_bytes;
}

// A file that the folder needs to be opened is missing, or ends early.
bool is_incomplete_folder(const fs::path& path, const ckpt::Error& error) {
  return error.is_incomplete() && ckpt::kind_at(path) == ckpt::EntryKind::Folder;
}

ckpt::Finding found_at_opening(const ckpt::Error& error) {
  return {ckpt::CheckKind::Structure,
          ckpt::Severity::Damage,
          error.where(),
          error.problem(),
          error.hint(),
          false,
          error.is_incomplete()};
}

void add(std::vector<ckpt::Finding> findings, VerifyReport& report) {
  std::ranges::move(findings, std::back_inserter(report.findings.findings));
}

// Resolves what is to be looked at, and says what is not. Throws NotFound where that is nothing.
ckpt::KeySelection resolved(const OpenedTraining& checkpoint, ckpt::KeySelection selection,
                            VerifyReport& report) {
  if (selection.is_everything()) return selection;
  const std::vector<ckpt::KeyName> names = names_in(checkpoint.catalog());
  selection.resolve(names);
  selection.refuse_missing(names);
  const auto count = static_cast<uint64_t>(std::ranges::count_if(
      names, [&](const ckpt::KeyName& name) { return selection.accepts(name.file, name.key); }));
  if (count == 0) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = checkpoint.shown_path(), .key = {}},
                      "no tensor or object is selected");
  }
  report.not_checked.push_back({"the values of " + std::to_string(names.size() - count) + " of " +
                                    counted(names.size(), "key"),
                                "not selected"});
  return selection;
}

VerifyReport report_of(const OpenedTraining& checkpoint) {
  VerifyReport report;
  report.format = checkpoint.catalog().format;
  report.iteration = checkpoint.catalog().iteration;
  return report;
}

// Of a file that was opened alone and is, or holds, a part of more.
void say_what_is_a_part(const OpenedTraining& checkpoint, VerifyReport& report) {
  for (std::string& line : RankParts(checkpoint).lines()) {
    const std::string& file = checkpoint.catalog().files.front().path;
    report.findings.findings.push_back({ckpt::CheckKind::Structure,
                                        ckpt::Severity::Note,
                                        {.file = checkpoint.shown_name(file), .key = {}},
                                        std::move(line)});
  }
  const auto file = file_of_set(checkpoint);
  if (!file) return;
  const std::string other = file->count == 2 ? "the other file" : "the other files";
  report.not_checked.push_back({other + " of its set", "this is " + text_of(*file)});
}

// Of ranks of FSDP1 whose optimizer's flat states are not put together.
void say_which_states_stay_apart(const OpenedTraining& checkpoint, VerifyReport& report) {
  constexpr std::string_view kApart = "of a flat optimizer";
  const std::string& words = checkpoint.joined_words();
  const size_t end = words.find(kApart);
  if (end == words.npos) return;
  const size_t reason = end + kApart.size() + 2;
  report.not_proven.push_back(
      {"that the states of the flat optimizer are whole",
       reason < words.size() ? words.substr(reason) : "no file says what they are parts of"});
}

// PyTorch's DCP keeps one rank's copy of an object: what the others had of a tensor in it is
// nowhere.
void say_which_objects_are_parts(const OpenedTraining& checkpoint, VerifyReport& report) {
  if (is_megatron(checkpoint)) return;
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    if (!object.region) continue;
    try {
      const Document document = checkpoint.read_object(object);
      const std::vector<ckpt::TensorPart> parts = ckpt::parts_in(document.tree.root());
      const auto part = std::ranges::find(parts, false, &ckpt::TensorPart::is_whole);
      if (part == parts.end()) continue;
      report.not_proven.push_back({"that '" + ckpt::escaped(object.key) + "' is whole",
                                   "'" + ckpt::escaped(part->pointer) + "' is a " + part->words});
    } catch (const Error&) {
      continue;  // a finding of its file
    }
  }
}

// Files beside a plain checkpoint that nothing here reads.
void add_unread_files(const ckpt::Findings& findings, VerifyReport& report) {
  std::string names;
  for (const ckpt::FileAccount& file : findings.files) {
    if (file.beside != ckpt::kNotChecked) continue;
    names += (names.empty() ? "" : ", ") + ckpt::escaped(file.path);
  }
  if (!names.empty()) report.not_checked.push_back({names, "beside the checkpoint, and not read"});
}

void check_groups_of(const TrainingState& state, VerifyReport& report) {
  const TrainedParam* const dense = dense_among_experts(state);
  if (dense == nullptr) return;
  report.find({.file = {}, .key = dense->info.name}, std::string(kDenseAmongExperts));
}

// What was found of the meaning joins what was found of the bytes.
void join_findings(VerifyReport& report, ckpt::Findings findings) {
  std::vector<ckpt::Finding>& meaning = report.findings.findings;
  findings.findings.insert(findings.findings.end(), meaning.begin(), meaning.end());
  add_unread_files(findings, report);
  findings.sort();
  drop_repeated(findings.findings);
  drop_explained_hashes(findings.findings);
  report.findings = std::move(findings);
}

// Values in files beside a plain checkpoint, which verify() has opened for their structure alone.
// Of several processes the one that has its first byte looks at all of it.
void look_at_values_beside(const OpenedTraining& checkpoint, const VerifyOptions& options,
                           VerifyReport& report) {
  VerifyOptions alone;
  alone.execution = options.execution;
  alone.allow_nonfinite = options.allow_nonfinite;
  std::vector<ckpt::Finding> found;
  for (const ckpt::FileAccount& file : report.findings.files) {
    const bool has_tensors = file.beside.starts_with("torch.save") || file.beside == "safetensors";
    if (!has_tensors || !file.owns(0)) continue;
    unless_damaged([&] {
      ckpt::OpenOptions opening;
      opening.limits = checkpoint.limits();
      VerifyReport values =
          verify(open_checkpoint(checkpoint.folder() / file.path, opening), alone);
      report.tensor_count += values.tensor_count + values.state_count;
      report.sound_tensor_count += values.sound_tensor_count + values.sound_state_count;
      report.allowed_value_count += values.allowed_value_count;
      report.allowed_tensor_count += values.allowed_tensor_count;
      for (ckpt::Finding& finding : values.findings.findings) {
        if (finding.check != ckpt::CheckKind::Meaning) continue;
        finding.where.file = file.path;
        found.push_back(std::move(finding));
      }
    });
  }
  add(std::move(found), report);
  report.findings.sort();
}

// Files that two ranks wrote at once end early, too. What is said of them says why.
void find_overwritten_files(const OpenedTraining& checkpoint, VerifyReport& report) {
  const fs::path& folder = checkpoint.folder();
  bool is_any = false;
  for (const ckpt::FileEntry* file : lacking_files(checkpoint.catalog())) {
    if (file->is_missing) continue;
    const ckpt::Error error(ckpt::ErrorCode::Corrupt, {file->path}, file->lack);
    auto overwritten = find_overwritten(folder, error, checkpoint.limits());
    if (!overwritten) continue;
    is_any = true;
    overwritten->where.file = checkpoint.shown_name(file->path);
    overwritten->is_incomplete = true;
    report.findings.findings.push_back(std::move(*overwritten));
  }
  if (is_any)
    add(find_lost_params(folder, {.iteration = {}, .limits = checkpoint.limits()}), report);
}

// Of what is there, files, archives and checksums: what the state means takes all of it.
VerifyReport verify_incomplete(const OpenedTraining& checkpoint, const VerifyOptions& options) {
  VerifyReport report = report_of(checkpoint);
  ckpt::VerifyOptions checks = options;
  checks.selection = resolved(checkpoint, options.selection, report);
  check_rank_folders(checkpoint, report);
  find_overwritten_files(checkpoint, report);
  report.not_checked.push_back({"what the values mean", "files are missing or truncated"});
  std::set<std::string> explained;
  for (const ckpt::Finding& finding : report.findings.findings)
    explained.insert(finding.where.file);
  if (options.share.rank != 0) drop_what_the_first_says(report);
  ckpt::Findings findings = ckpt::verify(checkpoint, checks);
  std::erase_if(findings.findings, [&](const ckpt::Finding& finding) {
    return finding.is_incomplete && explained.contains(finding.where.file);
  });
  join_findings(report, std::move(findings));
  return report;
}

VerifyReport verify_files(const OpenedTraining& checkpoint, const VerifyOptions& options) {
  VerifyReport report = report_of(checkpoint);
  check_rank_folders(checkpoint, report);
  check_resume_files(checkpoint, report);
  report.not_checked.push_back({"archives, checksums and values", "only files were checked"});
  if (options.share.rank != 0) drop_what_the_first_says(report);
  join_findings(report, ckpt::verify(checkpoint, options));
  return report;
}

}  // namespace

VerifyReport verify(const OpenedTraining& checkpoint, const VerifyOptions& options) {
  if (options.quick && options.files_only) return verify_files(checkpoint, options);
  if (!lacking_files(checkpoint.catalog()).empty()) return verify_incomplete(checkpoint, options);
  VerifyReport report = report_of(checkpoint);
  const ckpt::KeySelection selection = resolved(checkpoint, options.selection, report);
  StateCheck states(checkpoint, options, report);
  if (may_be_overwritten(checkpoint)) {
    add(find_lost_params(checkpoint.folder(), {.iteration = {}, .limits = checkpoint.limits()}),
        report);
  }
  if (options.quick) {
    std::erase_if(report.not_checked, is_about_values);
    report.not_checked.push_back({"checksums and values", "a quick check reads no tensor data"});
  } else {  // a quick look asks whether a checkpoint is complete, which it may be all the same
    add(find_other_iterations(checkpoint), report);
  }
  check_resume_files(checkpoint, report);
  check_steps(checkpoint, report);
  say_what_is_a_part(checkpoint, report);
  say_which_states_stay_apart(checkpoint, report);
  if (!options.quick) say_which_objects_are_parts(checkpoint, report);
  check_groups(checkpoint, report);
  check_proof(checkpoint, states.state(), options, report);
  if (states.state()) {
    check_args(*states.state(), report);
    check_layers(*states.state(), report);
    check_groups_of(*states.state(), report);
    check_distributed_optimizers(*states.state(), checkpoint, report);
  } else {
    check_args(checkpoint, report);
  }
  find_lacking(checkpoint, states.state(), report);
  if (options.share.rank != 0) drop_what_the_first_says(report);
  ckpt::VerifyOptions with_watch = options;
  with_watch.selection = selection;
  with_watch.on_storage = [&](const ckpt::StoragePiece& piece) {
    states.see(piece);
    if (options.on_storage) options.on_storage(piece);
  };
  ckpt::Findings findings = ckpt::verify(checkpoint, with_watch);
  const ckpt::SelectedRegions selected(checkpoint.catalog(), selection);
  if (!options.quick) states.finish(findings.files, selected);
  join_findings(report, std::move(findings));
  if (!options.quick && selection.is_everything()) {
    if (options.share.rank == 0) check_deepspeed_masters(checkpoint, report);
    look_at_values_beside(checkpoint, options, report);
  }
  return report;
}

VerifyReport verify(const fs::path& path, const VerifyOptions& options) {
  std::optional<OpenedTraining> checkpoint;
  try {
    checkpoint = open(path, options);
  } catch (const ckpt::Error& error) {
    auto overwritten = find_overwritten(path, error, options.limits);
    if (!overwritten && (is_damage_of_tensor(error) || is_incomplete_folder(path, error))) {
      return report_alone(found_at_opening(error), options);
    }
    if (!overwritten) throw;
    VerifyReport report = report_alone(std::move(*overwritten), options);
    if (options.share.rank == 0) {
      add(find_lost_params(path, {.iteration = options.iteration, .limits = options.limits}),
          report);
    }
    return report;
  }
  return verify(*checkpoint, options);
}

}  // namespace optim
