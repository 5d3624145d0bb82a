// What is one of several: tensors that are parts, as their file says it, and files of ranks, as
// their names say it. A name is a convention of the program that wrote it: nothing is refused for
// it.
#include <algorithm>
#include <optional>
#include <span>

#include <ckpt/copies.h>
#include <ckpt/printed.h>
#include <training/contents.h>
#include <training/megatron_folders.h>
#include <training/verify.h>

#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr uint64_t kFilesMax = 1 << 16;  // of a set; more than a name may claim
constexpr size_t kNamesShown = 2;

constexpr size_t kDigitsMax = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string with_zeros(uint64_t number, size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

std::filesystem::path folder_of(const OpenedTraining& checkpoint) {
  return checkpoint.folder().empty() ? "." : checkpoint.folder();
}

// Without what is no regular file. A folder that cannot be listed has none.
std::vector<std::string> names_in(const ckpt::Folder& source, const std::filesystem::path& folder) {
  try {
    return source.list(folder);
  } catch (const Error&) {
    return {};
  }
}

// The names of a set whose size a name says: `first` is the number of the first one.
struct Numbered {
  std::string before, after;
  uint64_t number = 0, first = 0, count = 0;
  size_t digits = 0;

  std::string name_of(uint64_t each) const { return before + with_zeros(each, digits) + after; }
  bool is_sound() const {
    return count >= 1 && count <= kFilesMax && number >= first && number - first < count;
  }
};

// A number in a name: where its digits are.
struct NumberIn {
  size_t begin = 0, end = 0;
  uint64_t value = 0;
};

std::optional<NumberIn> number_at(const std::string& name, size_t begin) {
  NumberIn number{begin, begin, 0};
  for (; number.end < name.size() && is_digit(name[number.end]); ++number.end) {
    if (number.end - begin == kDigitsMax) return std::nullopt;
    number.value = 10 * number.value + static_cast<uint64_t>(name[number.end] - '0');
  }
  return number.end == begin ? std::nullopt : std::optional(number);
}

std::optional<NumberIn> number_after(const std::string& name, std::string_view word) {
  for (size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if (const auto number = number_at(name, at + word.size())) return number;
  }
  return std::nullopt;
}

Numbered named(const std::string& name, const NumberIn& number, uint64_t first, uint64_t count) {
  return {name.substr(0, number.begin), name.substr(number.end), number.value, first, count,
          number.end - number.begin};
}

// model_world_size_4_rank_0.pt, model-00001-of-00002.safetensors.
std::optional<Numbered> numbered(const std::string& name) {
  const auto world = number_after(name, "world_size_"), rank = number_after(name, "rank_");
  if (world && rank) return named(name, *rank, 0, world->value);
  constexpr std::string_view kOf = "-of-";
  const size_t of = name.find(kOf);
  const size_t dash = of == name.npos || of == 0 ? name.npos : name.rfind('-', of - 1);
  if (dash == name.npos) return std::nullopt;
  const auto part = number_at(name, dash + 1), count = number_at(name, of + kOf.size());
  if (!part || !count || part->end != of) return std::nullopt;
  return named(name, *part, 1, count->value);
}

FileOfSet numbered_set(const Numbered& name, const std::vector<std::string>& beside) {
  FileOfSet file{{}, name.number - name.first + 1, name.count, {}, {}};
  for (uint64_t i = name.first; i < name.first + name.count; ++i) {
    if (i == name.number) continue;
    const std::string other = name.name_of(i);
    const bool is_there = std::ranges::binary_search(beside, other);
    (is_there ? file.present : file.missing).push_back(other);
  }
  return file;
}

bool is_deepspeed_name(const std::string& name) {
  const bool is_states = name.ends_with("model_states.pt") || name.ends_with("optim_states.pt");
  return is_states && (number_after(name, "rank_") || number_after(name, "model_"));
}

bool is_megatron_rank_file(const std::string& name, const std::filesystem::path& folder) {
  const bool is_in_rank_folder =
      folder.filename().string().starts_with(kMegatronFolders.rank_folder_prefix);
  return is_in_rank_folder && (name == "model_optim_rng.pt" || name == "distrib_optim.pt" ||
                               name.starts_with(kMegatronFolders.stray_rank_file_prefix));
}

// "a, b and 3 more".
std::string list_text(const std::vector<std::string>& names) {
  const auto shown = std::span(names).first(std::min(kNamesShown, names.size()));
  const std::string text = ckpt::joined(shown, ", ", ckpt::escaped);
  if (names.size() <= kNamesShown) return text;
  return text + " and " + std::to_string(names.size() - kNamesShown) + " more";
}

namespace fs = std::filesystem;

OpenedTraining open(const fs::path& path, const VerifyOptions& options) {
  ckpt::Limits limits = options.limits;
  limits.allow_missing_data = true;  // what is missing is told file by file
  return open_checkpoint(path, {.iteration = options.iteration, .limits = limits});
}

ckpt::CopySide side_of(const OpenedTraining& checkpoint) {
  ckpt::CopySide side{checkpoint.folder(), {}, checkpoint.limits().follow_links};
  if (!checkpoint.was_file()) return side;
  const auto& files = checkpoint.catalog().files;
  if (files.size() != 1) {
    throw Error(ErrorCode::InvalidArgument, {.file = checkpoint.shown_path(), .key = {}},
                "names several files; --against compares folders, or one file with another",
                "give the folder that holds it");
  }
  side.file = files.front().path;
  return side;
}

// Of a copy that cannot be opened: the folder that the original is in, or would be.
ckpt::CopySide side_of_what_is_left(const fs::path& path, const OpenedTraining& original,
                                    const VerifyOptions& options) {
  const fs::path below = path / original.folder().filename();
  const bool is_root =
      original.catalog().iteration && ckpt::kind_at(below) == ckpt::EntryKind::Folder;
  return {is_root ? below : path, {}, options.limits.follow_links};
}

}  // namespace

RankParts::RankParts(const OpenedTraining& checkpoint) {
  const Document* const document = checkpoint.state();
  if (document == nullptr) return;
  parts_ = ckpt::parts_in(document->tree.root());
  for (size_t i = 0; i < parts_.size(); ++i) {
    by_key_.emplace(parts_[i].pointer, i);
    for (const std::string& key : parts_[i].tensors) by_key_.emplace(key, i);
  }
}

const ckpt::TensorPart* RankParts::find(std::string_view key) const {
  const auto known = by_key_.find(key);
  return known == by_key_.end() ? nullptr : &parts_[known->second];
}

std::vector<std::string> RankParts::lines() const {
  std::vector<std::pair<std::string, uint64_t>> kinds;
  for (const ckpt::TensorPart& part : parts_) {
    const auto known = std::ranges::find(
        kinds, part.words, [](const auto& kind) -> const auto& { return kind.first; });
    if (known != kinds.end()) {
      ++known->second;
    } else {
      kinds.emplace_back(part.words, 1);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [words, count] : kinds) lines.push_back(counted(count, "tensor") + ": " + words);
  return lines;
}

std::optional<FileOfSet> file_of_set(const OpenedTraining& checkpoint) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (catalog.files.size() != 1 || catalog.files[0].path.find('/') != std::string::npos) {
    return std::nullopt;
  }
  const std::string& name = catalog.files[0].path;
  const std::filesystem::path folder = folder_of(checkpoint);
  const ckpt::Folder& source = checkpoint.source();
  if (const auto number = numbered(name); number && number->is_sound() && number->count > 1) {
    return numbered_set(*number, names_in(source, folder));
  }
  if (is_megatron_rank_file(name, folder)) return FileOfSet{"Megatron", 0, {}, {}, {}};
  if (!is_deepspeed_name(name)) return std::nullopt;
  FileOfSet file{"DeepSpeed", 0, {}, {}, {}};
  for (const std::string& other : names_in(source, folder)) {
    if (other != name && is_deepspeed_name(other)) file.present.push_back(other);
  }
  return file;
}

std::string text_of(const FileOfSet& file) {
  if (!file.count) {
    const std::string text = "one rank's file of a " + file.framework + " checkpoint";
    if (file.present.empty()) return text;
    return text + "; beside it " + counted(file.present.size(), "other") + ": " +
           list_text(file.present);
  }
  const std::string count = std::to_string(*file.count);
  const std::string text =
      "shard " + std::to_string(file.number) + " of " + count + ", one of " + count + " files; ";
  if (file.missing.empty()) return text + "the others are beside it";
  if (file.present.empty()) return text + "none of the others is beside it";
  return text + std::to_string(file.present.size()) +
         " of the others beside it, missing: " + list_text(file.missing);
}

// Where two checkpoints lie whose files are to be the same.
ckpt::CopyReport compare_copies(const fs::path& copy, const fs::path& original,
                                const VerifyOptions& options) {
  const OpenedTraining whole = open(original, options);
  std::optional<OpenedTraining> opened;
  try {
    opened = open(copy, options);
  } catch (const Error& error) {
    const bool is_damaged =
        error.code() == ErrorCode::Corrupt || error.code() == ErrorCode::NotFound;
    if (!is_damaged || ckpt::kind_at(copy) != ckpt::EntryKind::Folder || whole.was_file()) throw;
  }
  if (!opened) {
    return ckpt::compare_copies(side_of_what_is_left(copy, whole, options), side_of(whole),
                                options.execution);
  }
  const auto a = opened->catalog().iteration, b = whole.catalog().iteration;
  if (a && b && *a != *b) {
    throw Error(
        ErrorCode::InvalidArgument, {.file = whole.shown_path(), .key = {}},
        "is iteration " + std::to_string(*b) + ", the copy is iteration " + std::to_string(*a),
        "--iteration N takes one of both");
  }
  return ckpt::compare_copies(side_of(*opened), side_of(whole), options.execution);
}

}  // namespace optim
