#include <ckpt/checkpoint.h>

#include <algorithm>
#include <mutex>

#include <ckpt/error.h>
#include <ckpt/folder_convention.h>
#include <ckpt/inventory.h>

#include "format/foreign/foreign.h"
#include "format/format.h"
#include "format/joined/joined_state.h"
#include "format/joined/rank_metadata.h"
#include "format/location/location.h"
#include "format/torch/torch_save.h"
#include "model/check_catalog.h"
#include "read/inflated_entries.h"
#include "read/payload_reader.h"

namespace ckpt {

PayloadSource::~PayloadSource() = default;
void PayloadSource::read_once(const StorageRegion& located, uint64_t offset_bytes,
                              std::span<std::byte> out) const {
  read_bytes(located, offset_bytes, out);
}

namespace {

// Where a file of the checkpoint is refused because it is something else (a Git LFS pointer, a
// TorchScript archive), that is said instead. Files of torch_dist, and what lies beside
// files of ranks, are pickles, and may be compressed.
void refuse_foreign_file(const Location& location, const Error& error) {
  const bool is_refused =
      error.code() == ErrorCode::Corrupt || error.code() == ErrorCode::Unsupported;
  if (!is_refused || error.where().file.empty()) return;
  const std::filesystem::path path = location.folder / error.where().file;
  const Foreign* foreign = nullptr;
  try {
    const auto file =
        location.source->open(location.folder, {error.where().file, {}, Links::MayLeadOut});
    const bool is_pickle =
        location.format == Format::TorchDist || error.where().file == kRankMetadata;
    foreign = is_pickle ? foreign_stand_in(*file) : foreign_file(*file);
  } catch (const Error&) {
    return;  // cannot be looked at: what was said first stands
  }
  if (foreign != nullptr) refuse_foreign(*foreign, path);
}

// Which chunk a .distcp entry holds, by its place: what .metadata says of it. Built when the first
// is asked for, since a listing asks for none, and put in order file by file. The catalog must
// outlive it. Safe to ask from many threads.
class ExpectedEntries {
 public:
  struct Entry {
    const TensorEntry* tensor = nullptr;
    const Chunk* chunk = nullptr;
  };
  explicit ExpectedEntries(const Catalog& catalog) : catalog_(catalog) {}

  // Empty where no chunk starts there.
  Entry find(const StorageRegion& region) const {
    std::call_once(built_, [this] { build(); });
    if (region.file >= of_file_.size()) return {};
    const std::vector<Entry>& entries = in_order(of_file_[region.file]);
    const auto found = std::ranges::lower_bound(entries, region.bytes.offset_bytes, {}, offset_of);
    const bool is_there = found != entries.end() && offset_of(*found) == region.bytes.offset_bytes;
    return is_there ? *found : Entry();
  }

 private:
  struct OfFile {
    std::vector<Entry> entries;  // by offset, once they are sorted
    std::once_flag sorted;
  };

  static uint64_t offset_of(const Entry& entry) { return entry.chunk->region.bytes.offset_bytes; }

  // Calls visit(tensor, chunk) for each that is an entry of its file.
  void for_each_entry(const auto& visit) const {
    for (const TensorEntry& tensor : catalog_.tensors) {
      for (const Chunk& chunk : tensor.chunks) {
        if (chunk.region.wrapping != Wrapping::None) visit(tensor, chunk);
      }
    }
  }

  void build() const {
    std::vector<size_t> counts(catalog_.files.size());
    of_file_ = std::vector<OfFile>(counts.size());
    for_each_entry([&](const TensorEntry&, const Chunk& chunk) { ++counts[chunk.region.file]; });
    for (size_t file = 0; file < counts.size(); ++file)
      of_file_[file].entries.reserve(counts[file]);
    for_each_entry([&](const TensorEntry& tensor, const Chunk& chunk) {
      of_file_[chunk.region.file].entries.push_back({&tensor, &chunk});
    });
  }

  static const std::vector<Entry>& in_order(OfFile& file) {
    std::call_once(file.sorted, [&file] {  // most writers leave them in order
      if (std::ranges::is_sorted(file.entries, {}, offset_of)) return;
      std::ranges::sort(file.entries, {}, offset_of);
    });
    return file.entries;
  }

  const Catalog& catalog_;
  mutable std::once_flag built_;
  mutable std::vector<OfFile> of_file_;
};

}  // namespace

struct Checkpoint::State {
  Location location;
  Limits limits;
  Contents contents;
  ExpectedEntries expected{contents.catalog};  // torch_dist
  mutable std::mutex mutex;                    // guards files
  mutable std::vector<std::unique_ptr<OpenedFile>> files;
  std::unique_ptr<InflatedEntries> inflated;

  const OpenedFile& file(uint32_t index) const {
    const std::lock_guard lock(mutex);
    if (!files[index]) {
      const FileEntry& entry = contents.catalog.files[index];
      const std::string name = shown_name(entry.path);
      files[index] = open_source(location, entry.path, name, limits);
      if (files[index]->state() != location.opened->state_of(entry.path)) {
        throw Error(ErrorCode::Corrupt, {name}, "changed while it was read",
                    "wait until the process that writes it has finished");
      }
    }
    return *files[index];
  }

  // Every file that was read or may still be, sorted, without duplicates.
  std::vector<std::string> file_names() const {
    std::vector<std::string> names = contents.metadata_files;
    for (const FileEntry& file : contents.catalog.files) names.push_back(file.path);
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  bool follows_convention() const {
    const FolderConvention* const convention = location.convention;
    if (contents.documents.contains(std::string(kJoinedDocument))) return false;
    if (contents.catalog.format == Format::Torch) return !location.only_file;
    if (convention == nullptr || contents.catalog.format != Format::TorchDist) return false;
    const std::string common_file(convention->common_file);
    if (contents.has_backend_file || contents.documents.contains(common_file)) return true;
    const auto planner_data = contents.dist_metadata->root().state()->find("planner_data");
    return location.iteration && (!planner_data || planner_data->is_none());
  }

  std::string shown_name(const std::string& path) const {
    return location.was_root ? location.folder.filename().string() + "/" + path : path;
  }
  std::string file_path(uint32_t index) const {
    return shown_name(contents.catalog.files[inflated->real_file(index)].path);
  }

  // The archive of an entry; `what`: what .metadata says that it holds, of a tensor.
  Document read_entry(const StorageRegion& region, const ExpectedEntries::Entry& what) const {
    if (region.wrapping != Wrapping::ZstdTorchSave) {
      return read_torch_save(file(region.file), region.file, region.bytes, limits);
    }
    const uint32_t number =
        inflated->add(region, inflated_bytes_max(what.tensor, what.chunk, limits));
    const auto stream = inflated->stream(number);
    return read_torch_save(*stream, number, {0, stream->size_bytes()}, limits);
  }

  LocatedRegion unwrap(const StorageRegion& region) const {
    const ExpectedEntries::Entry what = expected.find(region);
    const Document document = read_entry(region, what);
    const auto view = as_tensor(document.tree.root());
    Where where{file_path(region.file), region.bytes.offset_bytes, {}};
    if (!view) throw Error(ErrorCode::Corrupt, where, "the entry does not hold a tensor");
    if (what.tensor != nullptr) {  // it must be the one that .metadata promises
      where.key = what.tensor->key;
      check_entry(*view, *what.tensor, *what.chunk, where);
    }
    const TensorEntry entry = make_tensor_entry(document, {"", 0, *view}, file_path(region.file));
    LocatedRegion storage{entry.chunks[0].region};
    if (entry.chunks[0].view) {
      storage.view = entry.chunks[0].view;
      return storage;
    }
    const uint64_t offset = entry.chunks[0].payload_offset_bytes;
    if (offset != 0) {  // the checksum is that of the whole storage, of which this is a part
      storage.crc32.reset();
      storage.bytes.offset_bytes += offset;
      storage.bytes.count_bytes -= offset;
    }
    return storage;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::filesystem::path& path, OpenOptions options) {
  auto state = std::make_unique<State>();
  if (options.source == nullptr) options.source = source_of(path);
  options.source = keep_metadata(std::move(options.source), options.convention);
  state->location = find_checkpoint(path, options);
  state->limits = options.limits;
  const FormatRow& row = row_of(state->location.format);
  try {
    state->contents = row.read_contents(state->location, options.limits);
    refuse_incomplete(state->contents.catalog, options.limits);
    state->contents.catalog.format = row.format;
    state->contents.catalog.index();
  } catch (Error& error) {
    refuse_foreign_file(state->location, error);
    if (error.code() == ErrorCode::Unsupported) error.hinted(row.what_works);
    if (state->location.was_root) error.below(state->location.folder.filename().string());
    throw;
  }
  state->files.resize(state->contents.catalog.files.size());
  state->inflated = std::make_unique<InflatedEntries>(
      static_cast<uint32_t>(state->files.size()),
      [raw = state.get()](uint32_t file) -> const RandomAccess& { return raw->file(file); });
  return Checkpoint(std::move(state));
}

const Catalog& Checkpoint::catalog() const { return state_->contents.catalog; }
const Folder& Checkpoint::source() const { return *state_->location.source; }
const std::filesystem::path& Checkpoint::folder() const { return state_->location.folder; }
std::vector<std::filesystem::path> Checkpoint::files() const {
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : state_->file_names()) paths.push_back(folder() / name);
  return paths;
}

std::vector<SourceFile> Checkpoint::files_as_opened() const {
  std::vector<SourceFile> files;
  for (const std::string& name : state_->file_names()) {
    const auto state = state_->location.opened->state_of(name);
    if (!state) {
      throw Error(ErrorCode::NotFound, {shown_name(name)}, "is missing");
    }
    files.push_back({folder() / name, *state});
  }
  return files;
}

bool Checkpoint::may_lead_out(const std::string& file) const {
  return ckpt::may_lead_out(state_->location, file, state_->limits);
}

std::string Checkpoint::shown_path() const {
  const Location& location = state_->location;
  if (!location.only_file) return location.folder.string();
  return (location.folder == "." ? std::filesystem::path() : location.folder) / *location.only_file;
}

bool Checkpoint::was_root() const { return state_->location.was_root; }
bool Checkpoint::was_file() const { return state_->location.named_file; }
const Limits& Checkpoint::limits() const { return state_->limits; }

const FolderConvention* Checkpoint::convention() const {
  return state_->follows_convention() ? state_->location.convention : nullptr;
}
const FolderConvention* Checkpoint::known_convention() const { return state_->location.convention; }

const Document* Checkpoint::document(std::string_view file) const {
  const auto found = state_->contents.documents.find(std::string(file));
  return found == state_->contents.documents.end() ? nullptr : &found->second;
}

const Document* Checkpoint::state() const {
  if (catalog().format != Format::Torch) return nullptr;
  if (const Document* const joined = document(kJoinedDocument)) return joined;
  return state_->location.only_file ? document(*state_->location.only_file) : nullptr;
}

const std::string& Checkpoint::joined_words() const { return state_->contents.joined_words; }

std::vector<NamedDocument> documents_of(const Checkpoint& checkpoint) {
  const std::vector<FileEntry>& files = checkpoint.catalog().files;
  if (const Document* const whole = checkpoint.state()) return {{files.at(0).path, "", whole}};
  std::vector<NamedDocument> found;
  for (const FileEntry& file : files) {
    const Document* const one = checkpoint.document(file.path);
    if (one != nullptr) found.push_back({file.path, file.path, one});
  }
  return found;
}

const ValueTree* Checkpoint::dist_metadata() const {
  const auto& metadata = state_->contents.dist_metadata;
  return metadata ? &*metadata : nullptr;
}

const std::map<std::string, std::string>& Checkpoint::header_metadata() const {
  return state_->contents.header_metadata;
}

Document Checkpoint::read_object(const ObjectEntry& object) const {
  if (!object.region) {
    throw Error(ErrorCode::InvalidArgument, {object.file, std::nullopt, object.key},
                "the object is part of a file's value tree");
  }
  return within({}, object.key, [&] { return state_->read_entry(*object.region, {}); });
}

void Checkpoint::read(const TensorEntry& tensor, const Box& box, std::span<std::byte> out) const {
  BoxReader reader(tensor, box, *this);
  reader.read(out);
}

const TensorEntry& Checkpoint::tensor_named(std::string_view key) const {
  const TensorEntry* found = nullptr;
  for (const TensorEntry& tensor : catalog().tensors) {
    if (tensor.key != key) continue;
    if (found != nullptr) {
      throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = std::string(key)},
                  "several files have a tensor of this key",
                  "take the one that is meant from catalog()");
    }
    found = &tensor;
  }
  if (found == nullptr) {
    throw Error(ErrorCode::NotFound, {.file = {}, .key = std::string(key)},
                "no tensor has this key");
  }
  return *found;
}

Box Checkpoint::box_of(const TensorEntry& tensor, DType wanted, const std::optional<Box>& box) {
  const auto refuse = [&](std::string problem) {
    throw Error(ErrorCode::InvalidArgument, {.file = tensor.file, .key = tensor.key},
                std::move(problem));
  };
  if (tensor.dtype != wanted) {
    refuse("expected elements of " + std::string(name(wanted)) + ", found " +
           std::string(name(tensor.dtype)));
  }
  const Box all = whole(tensor.shape);
  if (!box) return all;
  const bool is_inside = box->offsets.size() == all.sizes.size() &&
                         box->sizes.size() == all.sizes.size() &&
                         (element_count(box->sizes) == 0 || intersect(*box, all) == *box);
  if (!is_inside) refuse("the requested box extends beyond the tensor");
  return *box;
}

void Checkpoint::check_crc(const TensorEntry& tensor) const {
  for (const Chunk& chunk : tensor.chunks) {
    within({}, tensor.key, [&] { check_storage_crc(locate(chunk.region), *this); });
  }
}

LocatedRegion Checkpoint::locate(const StorageRegion& region) const {
  return region.wrapping == Wrapping::None ? LocatedRegion{region} : state_->unwrap(region);
}

void Checkpoint::read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                            std::span<std::byte> out) const {
  const uint64_t start_bytes = located.bytes.offset_bytes + offset_bytes;
  if (state_->inflated->holds(located.file)) {
    return state_->inflated->stream(located.file)->read_at(start_bytes, out);
  }
  state_->file(located.file).read_at(start_bytes, out);
}

void Checkpoint::read_once(const StorageRegion& located, uint64_t offset_bytes,
                           std::span<std::byte> out) const {
  if (state_->inflated->holds(located.file)) return read_bytes(located, offset_bytes, out);
  state_->file(located.file).read_once(located.bytes.offset_bytes + offset_bytes, out);
}

std::string Checkpoint::file_name(uint32_t file) const { return state_->file_path(file); }
std::string Checkpoint::shown_name(const std::string& path) const {
  return state_->shown_name(path);
}

}  // namespace ckpt
