// ckpt-inspect hash: SHA-256 of every tensor and object, and one digest of the whole.
#include <algorithm>
#include <optional>
#include <ostream>
#include <ranges>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <ckpt/hash.h>
#include <ckpt/named_file.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <training/exported_model.h>
#include <training/hash_record.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>
#include <training/names_in_common.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/facts.h"

namespace tools::inspect {
namespace {

struct HashOptions {
  SourceOptions source;
  bool logical = false, exported = false;
  std::string record;
  std::vector<std::string> outputs;
  KeyFilter filter;
  ShareOptions share;

  void declare(CLI::App& app) {
    source.declare(app);
    app.add_flag("--logical", logical,
                 "Use canonical names, so that the same state has the same hash in every format "
                 "and at every "
                 "data-parallel size");
    add_choice(app, "--as", exported, {{"huggingface", true}})
        ->description(
            "Hash a training checkpoint's model as ckpt-convert --to huggingface writes it")
        ->excludes("--logical");
    add_value(app, "-c,--check FILE", record,
              "Compare with the recorded output (text or JSON) of an earlier run; exit code 1 "
              "if they differ");
    filter.declare(app);
    share.declare(app);
    add_value(app, "--finish FILE...", outputs,
              "Read no tensors; combine the output files of all processes")
        ->group("Several processes");
  }
};

nlohmann::json tensor_json(const ckpt::TensorHash& tensor) {
  nlohmann::json json = {
      {"key", json_text(tensor.key)},
      {"dtype", name(tensor.dtype)},
      {"shape", tensor.shape},
      {"bytes", ckpt::element_count(tensor.shape) * bytes_per_element(tensor.dtype)},
      {"sha256", hex(tensor.sha256)}};
  if (!tensor.file.empty()) json["file"] = json_text(tensor.file);
  return json;
}

nlohmann::json object_json(const ckpt::ObjectHash& object) {
  nlohmann::json json = {{"key", json_text(object.key)},
                         {"sha256", hex(object.sha256)},
                         {"tensors", json_list(object.tensors, tensor_json)}};
  if (!object.file.empty()) json["file"] = json_text(object.file);
  return json;
}

template <class Hash>
nlohmann::json own_to_json(const std::vector<Hash>& hashes,
                           nlohmann::json (*as_json)(const Hash&)) {
  nlohmann::json list = nlohmann::json::array();
  for (const Hash& hash : hashes) {
    if (hash.is_own) list.push_back(as_json(hash));
  }
  return list;
}

void print_hashes_as_json(Console& console, const ckpt::Hashes& hashes, ckpt::Format format,
                          const HashOptions& options) {
  const ckpt::Share share = options.share.share();
  nlohmann::json document = json_document();
  if (!options.filter.is_everything()) document["selection"] = json_text(options.filter.text());
  document["format"] = name(format);
  document["tensors"] = own_to_json(hashes.tensors, tensor_json);
  document["objects"] = own_to_json(hashes.objects, object_json);
  if (share.world_size == 1) {
    document["digest"] = hex(hashes.digest);
  } else {
    document["share"] = share_json(share);
  }
  print_json(console, document);
}

// Of a share its rows alone, as the whole output has them: the columns are as wide, and the titles
// are the first process's.
void print_hash_rows(Console& console, const ckpt::Hashes& hashes, ckpt::Share share) {
  Table table({{.title = "SHA-256", .can_shorten = true},
               {"DTYPE"},
               {.title = "SHAPE", .drop_order = 1},
               {.title = "KEY", .can_shorten = true}});
  if (share.rank != 0) table.hide_titles();
  for (const optim::HashLine& line : optim::lines_of(hashes)) {
    std::vector<Cell> cells = {
        {hex(*line.sha256)}, {line.dtype, Paint::Cyan}, {line.shape}, {line.name, Paint::Bold}};
    line.is_own ? table.add_row(std::move(cells)) : table.make_room(std::move(cells));
  }
  table.print(console);
}

void print_hashes(Console& console, const ckpt::Hashes& hashes, const HashOptions& options) {
  const ckpt::Share share = options.share.share();
  if (console.options().quiet) {
    console.out() << hex(hashes.digest) << '\n';
    return;
  }
  print_hash_rows(console, hashes, share);
  const char* const tensor = options.logical    ? "logical tensor"
                             : options.exported ? "tensor"
                                                : "stored tensor";
  if (share.world_size != 1) {
    const auto is_own = [](const auto& hashed) { return hashed.is_own; };
    return console.note(
        share_text(share) + ": " + std::to_string(std::ranges::count_if(hashes.tensors, is_own)) +
        " of " + count_text(hashes.tensors.size(), tensor) + ", " +
        std::to_string(std::ranges::count_if(hashes.objects, is_own)) + " of " +
        count_text(hashes.objects.size(), "object") + "; --finish gives the digest of the whole");
  }
  std::string text = hex(hashes.digest) + "  digest of " +
                     count_text(hashes.tensors.size(), tensor) + " and " +
                     count_text(hashes.objects.size(), "object");
  if (!options.filter.is_everything())
    text.append(optim::kSelectedBy).append(options.filter.text());
  console.print_text(text);
}

// Refuses before anything is read what a share cannot answer.
void check_share(const HashOptions& options, bool quiet) {
  const ckpt::Share share = options.share.share();
  if (share.world_size == 1) return;
  if (!options.outputs.empty()) refuse_usage("--finish puts together the outputs of all shares");
  if (quiet && options.record.empty()) {
    refuse_usage("--quiet prints the digest of the whole alone, which no share knows");
  }
}

// An output of an earlier run.
struct RecordFile {
  std::string path, text;
};

RecordFile read_record(const std::string& path) {
  constexpr uint64_t kBytesMax = uint64_t{256} << 20;  // 10^6 rows
  return {path, ckpt::read_named_file(path, kBytesMax)};
}

// What the user names beside the checkpoint, read and refused before anything else is.
struct Records {
  std::vector<RecordFile> outputs;
  std::optional<RecordFile> check;
};

Records read_records(const HashOptions& options) {
  Records records;
  for (const std::string& path : options.outputs) records.outputs.push_back(read_record(path));
  if (!options.record.empty()) records.check = read_record(options.record);
  return records;
}

void check_records(const Records& records, const ckpt::Hashes& listed) {
  for (const RecordFile& output : records.outputs) {
    optim::check_hash_record(output.text, listed, output.path);
  }
  if (records.check) optim::check_hash_record(records.check->text, listed, records.check->path);
}

ckpt::Hashes hash_or_finish(const HashOptions& options, const optim::OpenedTraining& checkpoint,
                            const Records& records, Console& console) {
  const ckpt::Share share = options.share.share();
  ProgressLine line(console, "hashing");
  line.leave_terminal_if(options.share.distributed && share.rank != 0);
  std::optional<optim::ExportedModel> model;
  if (options.exported) model = optim::exported_model(checkpoint);
  const ckpt::PayloadSource& payloads = model ? *model->payloads : checkpoint;
  ckpt::Inventory inventory = model             ? std::move(model->inventory)
                              : options.logical ? optim::logical_inventory(checkpoint)
                                                : native_inventory(checkpoint);
  if (options.logical && names_places(inventory)) console.warn(optim::kHasPlaces);
  select({&inventory}, options.filter, console);
  ckpt::Hashes hashes = list_hashed(inventory);
  check_records(records, hashes);
  if (records.outputs.empty()) {
    return hash(inventory, payloads, make_execute_options(console, line), share);
  }
  std::vector<optim::HashRecord> shares;
  for (const RecordFile& output : records.outputs) {
    shares.push_back(optim::parse_hash_record(output.text));
  }
  optim::fill(hashes, std::move(shares));
  return hashes;
}

// --- --check ---

struct Comparison {
  const optim::HashRecord &found, &recorded;
  ckpt::Share share;
  optim::RecordComparison result;
  std::vector<std::string> not_covered;
};

// Files of a folder that no hash is about, whatever is in them: .metadata beyond the keys and where
// their bytes are, metadata.json, what lies beside the checkpoint, and what its root has.
std::vector<std::string> find_not_covered(const optim::OpenedTraining& checkpoint) {
  if (checkpoint.was_file()) return {};
  const ckpt::Folder& source = checkpoint.source();
  const std::filesystem::path& folder = checkpoint.folder();
  std::set<std::string> data, names;
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) data.insert(file.path);
  const bool is_listed = source.can_list(folder);
  for (const std::string& name : is_listed ? source.list(folder) : std::vector<std::string>()) {
    const bool is_file = source.kind_of_entry(folder / name) == ckpt::EntryKind::File;
    if (is_file && !data.contains(name)) names.insert(checkpoint.shown_name(name));
  }
  for (const ckpt::FileBeside& file : files_beside(checkpoint)) {
    names.insert(file.shown + (file.is_folder ? "/" : ""));
  }
  for (const std::string_view name :
       {optim::kMegatronFolders.tracker, optim::kMegatronFolders.proof_file}) {
    const bool is_there = checkpoint.was_root() && source.has(folder.parent_path() / name);
    if (is_there) names.insert(std::string(name));
  }
  return {names.begin(), names.end()};
}

void note_not_covered(Console& console, const std::vector<std::string>& names) {
  if (names.empty()) return;
  console.note("hashes are of tensors and objects; not covered: " + few_of(names) +
               "; verify --against OTHER compares every byte");
}

void print_as_json(Console& console, const Comparison& comparison) {
  nlohmann::json document = json_document();
  document["equal"] = comparison.result.is_equal;
  document["compared"] = comparison.result.compared_count;
  if (!comparison.not_covered.empty()) {
    document["not_covered"] = json_texts(comparison.not_covered);
  }
  if (!comparison.found.selection.empty()) {
    document["selection"] = json_text(comparison.found.selection);
  }
  if (comparison.share.world_size == 1) {
    document["digest"] = comparison.found.digest;
  } else {
    document["share"] = share_json(comparison.share);
  }
  document["different"] =
      json_list(comparison.result.different, [](const auto& each) -> nlohmann::json {
        return {{"name", json_text(each.first)}, {"kind", name(each.second)}};
      });
  print_json(console, document);
}

void print_as_text(Console& console, const Comparison& comparison) {
  const optim::RecordComparison& result = comparison.result;
  Table table({{.can_shorten = true}, {.can_shorten = true}});
  for (const auto& [entry, difference] : result.different) {
    table.add_row({{std::string(name(difference)), Paint::Yellow}, {entry, Paint::Bold}});
  }
  table.print(console);
  console.out() << (result.is_equal ? console.paint(Paint::Green, "equal")
                                    : console.paint(Paint::Red, "different"))
                << ": ";
  if (comparison.share.world_size != 1) console.out() << share_text(comparison.share) << ": ";
  if (result.compared_count == 0 && comparison.share.world_size == 1) {
    console.out() << "the digest of the whole, all that was recorded\n";
  } else {
    const auto kinds = std::views::values(result.different);
    const auto new_count =
        static_cast<size_t>(std::ranges::count(kinds, optim::RecordDifference::New));
    console.out() << result.different.size() - new_count << " of " << result.compared_count
                  << " recorded hashes differ";
    if (new_count != 0) console.out() << ", " << new_count << " are not in the record";
    if (result.different.empty() && !result.is_equal) console.out() << ", but the digest does";
    console.out() << '\n';
  }
}

// A digest alone does not say of what it is.
void refuse_other_selection(const optim::HashRecord& recorded, const HashOptions& options) {
  if (recorded.entries.empty() || recorded.selection == options.filter.text()) return;
  const bool is_of_all = recorded.selection.empty();
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = options.record, .key = {}},
                    is_of_all ? "the record is of the whole checkpoint, not of a selection"
                              : "the record is of what was selected by " + recorded.selection,
                    is_of_all ? "leave --include and --exclude out" : "repeat these options");
}

std::set<std::string> names_in(const optim::HashRecord& record) {
  const auto names = std::views::keys(record.entries);
  return {names.begin(), names.end()};
}

// Whether it has the names that this checkpoint has with --logical where they were asked for
// without it, or the other way round.
bool has_other_names(const optim::HashRecord& recorded, const optim::OpenedTraining& checkpoint,
                     const HashOptions& options) {
  if (recorded.entries.empty() || !options.filter.is_everything()) return false;
  try {
    const ckpt::Hashes other = list_hashed(options.logical ? native_inventory(checkpoint)
                                                           : optim::logical_inventory(checkpoint));
    return names_in(optim::record_of(other)) == names_in(recorded);
  } catch (const ckpt::Error&) {
    return false;
  }
}

struct Compared {
  const ckpt::Hashes& hashes;
  optim::HashRecord recorded;
};

// The record of --check, if it can be compared with at all.
optim::HashRecord recorded_of(const RecordFile& file, const HashOptions& options) {
  optim::HashRecord recorded = optim::parse_hash_record(file.text);
  require_whole(recorded, options.record);
  refuse_other_selection(recorded, options);
  if (options.share.share().world_size != 1 && recorded.entries.empty())
    refuse_usage("the record is a digest of the whole, which no share knows");
  return recorded;
}

int compare(const HashOptions& options, const optim::OpenedTraining& checkpoint, Compared compared,
            Console& console) {
  const ckpt::Share share = options.share.share();
  optim::HashRecord& recorded = compared.recorded;
  const ckpt::Hashes& hashes = compared.hashes;
  if (share.world_size != 1) recorded = optim::part_of(recorded, hashes, share);
  optim::HashRecord found = optim::record_of(hashes);
  found.selection = options.filter.text();
  const Comparison comparison{found, recorded, share, compare_records(found, recorded, share),
                              find_not_covered(checkpoint)};
  if (console.options().json) {
    print_as_json(console, comparison);
  } else if (!console.options().quiet) {
    print_as_text(console, comparison);
    note_not_covered(console, comparison.not_covered);
  }
  if (!comparison.result.is_equal && names_in(found) != names_in(recorded) &&
      has_other_names(recorded, checkpoint, options)) {
    console.warn(options.logical ? "the record was made without --logical: leave it out here, too"
                                 : "the record was made with --logical: give it here, too");
  }
  return comparison.result.is_equal ? 0 : 1;
}

int run(const HashOptions& options, Console& console) {
  check_share(options, console.options().quiet);
  const Records records = read_records(options);
  optim::HashRecord recorded;
  if (records.check) recorded = recorded_of(*records.check, options);
  const optim::OpenedTraining checkpoint = options.source.open();
  if (!records.check) note_files_beside(checkpoint, console);
  const ckpt::Hashes hashes = hash_or_finish(options, checkpoint, records, console);
  if (records.check) return compare(options, checkpoint, {hashes, std::move(recorded)}, console);
  note_parts(console, checkpoint);
  console.options().json
      ? print_hashes_as_json(console, hashes, checkpoint.catalog().format, options)
      : print_hashes(console, hashes, options);
  return 0;
}

}  // namespace

Command make_hash_command() {
  return make_command<HashOptions>(
      {.name = "hash",
       .description = "Prints SHA-256 of each tensor and object, and one digest of the whole.",
       .examples = {"ckpt-inspect hash ckpt/", "ckpt-inspect hash ckpt/ --logical --quiet",
                    "ckpt-inspect hash ckpt/ > sums; ckpt-inspect hash -c sums copy/"},
       .quiet = "The digest alone",
       .exit_1 = "different from the record of --check",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect
