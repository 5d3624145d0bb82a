#include "publish/finish_store.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include <ckpt/catalog.h>
#include <ckpt/error.h>
#include <ckpt/hash.h>
#include <ckpt/run_jobs.h>
#include <ckpt/value_tree.h>

#include "codec/crc32.h"
#include "codec/hash_functions.h"
#include "codec/integrity.h"
#include "codec/pickle.h"
#include "codec/zstd_stream.h"
#include "io/directory.h"
#include "io/publish.h"
#include "work/workers.h"
#include "write/read_back.h"

namespace ckpt {
namespace {

// A file of a DCP folder in the staging, as it was written.
struct StoreFile {
  uint64_t count_bytes = 0;
  uint32_t crc32 = 0;
  bool operator==(const StoreFile&) const = default;
};
using StoreFiles = std::map<std::string, StoreFile>;  // by name in the folder

// What a compressed file is called until it takes the place of the other.
constexpr const char* kCompressedSuffix = ".zstd-partial";

StoreFile write_store_file(const Place& place, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  File::create(place, bytes.size()).write_at(0, bytes);
  return {bytes.size(), crc32(bytes)};
}

// Reads a file that was written from its start to its end.
class StoreFileReader {
 public:
  StoreFileReader(const Place& place, const StoreFile& written)
      : path_(place.path()), written_(written), file_(File::open(place)) {}

  uint64_t left_bytes() const { return written_.count_bytes - position_bytes_; }
  uint64_t position_bytes() const { return position_bytes_; }
  void read(std::span<std::byte> next) {
    file_.read_at(position_bytes_, next);
    position_bytes_ += next.size();
    crc32_ = crc32(next, crc32_);
  }
  // After the last byte: throws IoFailure where what was read is not what was written.
  void check() const {
    if (crc32_ != written_.crc32) throw_not_as_written(path_);
  }

 private:
  std::filesystem::path path_;
  StoreFile written_;
  File file_;
  uint64_t position_bytes_ = 0;
  uint32_t crc32_ = 0;
};

// The folder of the plan that .metadata is in.
std::filesystem::path store_of(const Plan& plan) {
  for (const PlannedFile& file : plan.files) {
    const std::filesystem::path path = file.path;
    if (path.filename() == ".metadata") return path.parent_path();
  }
  return {};
}

StoreFiles files_in(const std::filesystem::path& store, std::vector<FinishedPiece> written) {
  std::ranges::sort(written, {}, [](const FinishedPiece& piece) {
    return std::pair(std::string_view(piece.path), piece.bytes.offset_bytes);
  });
  StoreFiles files;
  for (const FinishedPiece& piece : written) {
    const std::filesystem::path path = piece.path;
    if (path.parent_path() != store) continue;
    auto& [count_bytes, crc] = files[path.filename().string()];
    crc = crc32_of_both(crc, piece.crc32, piece.bytes.count_bytes);
    count_bytes += piece.bytes.count_bytes;
  }
  return files;
}

void correct_sizes(const std::vector<FinishedPiece>& changed, Plan& plan) {
  for (const FinishedPiece& piece : changed) {
    auto file = std::ranges::find(plan.files, piece.path, &PlannedFile::path);
    if (file == plan.files.end()) file = plan.files.insert(file, {piece.path, 0});
    plan.total_bytes += piece.bytes.count_bytes - file->count_bytes;
    file->count_bytes = piece.bytes.count_bytes;
  }
}

constexpr size_t kHashedBlockBytes = size_t{1} << 20;

Sha256 hash_of(StoreFileReader file, WorkMeter& meter) {
  std::vector<std::byte> block(kHashedBlockBytes);
  Sha256Stream hash;
  while (file.left_bytes() != 0) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), file.left_bytes()));
    file.read(part);
    hash.update(part);
    meter.advance(part.size());
  }
  file.check();
  return hash.finish();
}

// integrity.json: the SHA-256 of each of these files, to which it is added. Throws IoFailure where
// one is not what was written.
void write_integrity(const Place& folder, const ExecuteOptions& options, StoreFiles& files) {
  std::vector<const StoreFiles::value_type*> jobs;
  uint64_t total_bytes = 0;
  for (const auto& file : files) {
    jobs.push_back(&file);
    total_bytes += file.second.count_bytes;
  }
  std::vector<Sha256> hashes(jobs.size());
  WorkMeter meter(options, total_bytes, "hashing");
  run_jobs(jobs.size(), thread_count(options.threads), [&](size_t number, unsigned) {
    const auto& [name, file] = *jobs[number];
    hashes[number] = hash_of({folder / name, file}, meter);
  });
  FileHashes by_name;
  for (size_t i = 0; i < jobs.size(); ++i) by_name.emplace(jobs[i]->first, hashes[i]);
  files[kIntegrityName] = write_store_file(folder / kIntegrityName, integrity_text(by_name));
}

constexpr const char* kMetadataName = ".metadata";
constexpr const char* kDescriptor = "stream.zstd/1";
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr int kMetadataProtocol = 4;

// An entry of a file, and the node of .metadata that says where it is.
struct Entry {
  ByteRange bytes;
  NodeId fields = 0;
};
using EntriesByFile = std::map<std::string, std::vector<Entry>>;

struct FileJob {
  const std::string& name;
  std::vector<Entry>& entries;
  StoreFile& file;
};

ValueTree read_metadata(const Place& folder, const StoreFile& written) {
  StoreFileReader file(folder / kMetadataName, written);
  std::vector<std::byte> bytes(file.left_bytes());
  file.read(bytes);
  file.check();
  ByteReader reader(bytes, kMetadataName);
  return pickle::read(reader);
}

EntriesByFile entries_of(const ValueTree& metadata) {
  EntriesByFile files;
  const Value places = metadata.root().state()->at("storage_data");
  for (size_t i = 0; i < places.item_count(); ++i) {
    const Value fields = *places.item(i).second.state();
    const ByteRange bytes{static_cast<uint64_t>(fields.at("offset").as_int()),
                          static_cast<uint64_t>(fields.at("length").as_int())};
    files[std::string(fields.at("relative_path").text())].push_back({bytes, fields.id()});
  }
  for (auto& [name, entries] : files) {
    std::ranges::sort(entries, {}, [](const Entry& entry) { return entry.bytes.offset_bytes; });
  }
  return files;
}

// Writes a compressed file beside one of a folder and puts it in its place.
class FileCompressor {
 public:
  FileCompressor(const Place& folder, const FileJob& job, ZstdCompressor compressor,
                 WorkMeter& meter)
      : place_(folder / job.name),
        new_place_(folder / (job.name + kCompressedSuffix)),
        source_(place_, job.file),
        target_(File::create(new_place_, 0)),
        compressor_(std::move(compressor)),
        meter_(meter),
        block_(kBlockBytes) {}

  // Returns where the entry now is.
  ByteRange add(const ByteRange& entry) {
    const uint64_t start_bytes = made_.count_bytes;
    skip_to(entry.offset_bytes);
    compressor_.start(entry.count_bytes);
    do {
      const auto part = read(entry.end_bytes());
      compressor_.add(part, source_.position_bytes() == entry.end_bytes(),
                      [this](std::span<const std::byte> bytes) { write(bytes); });
    } while (source_.position_bytes() < entry.end_bytes());
    return {start_bytes, made_.count_bytes - start_bytes};
  }

  StoreFile finish() {
    skip_to(source_.position_bytes() + source_.left_bytes());
    source_.check();
    remove_file(place_);
    rename_to_free_name(new_place_, place_);
    return made_;
  }

 private:
  // As much as the block holds of what comes before `end_bytes`.
  std::span<const std::byte> read(uint64_t end_bytes) {
    const uint64_t left_bytes = end_bytes - source_.position_bytes();
    const auto part = std::span(block_).first(std::min<uint64_t>(block_.size(), left_bytes));
    source_.read(part);
    meter_.advance(part.size());
    return part;
  }

  void skip_to(uint64_t offset_bytes) {
    while (source_.position_bytes() < offset_bytes) read(offset_bytes);
  }

  void write(std::span<const std::byte> bytes) {
    target_.write_at(made_.count_bytes, bytes);
    made_ = {made_.count_bytes + bytes.size(), crc32(bytes, made_.crc32)};
  }

  Place place_, new_place_;
  StoreFileReader source_;
  File target_;
  ZstdCompressor compressor_;
  WorkMeter& meter_;
  std::vector<std::byte> block_;
  StoreFile made_;
};

// Compresses each entry of the .distcp files of a DCP folder that execute() has just written, as
// PyTorch's ZStandard extension does, and writes its .metadata anew. How long a compressed entry is
// shows only when it is made, so offsets are given in the order of the entries, one file at a time.
// Needs room for one file more. `level`: ZstdCompressor::kLevelMin to kLevelMax. `files`: what was
// written; then, what lies there now. Throws IoFailure where the device gives back something else.
void compress_entries(const Place& folder, int level, const ExecuteOptions& options,
                      StoreFiles& files) {
  ValueTree metadata = read_metadata(folder, files.at(kMetadataName));
  EntriesByFile entries = entries_of(metadata);
  std::vector<FileJob> jobs;
  uint64_t total_bytes = 0;
  for (auto& [name, of_file] : entries) {
    jobs.push_back({name, of_file, files.at(name)});
    total_bytes += jobs.back().file.count_bytes;
  }
  WorkMeter meter(options, total_bytes, "compressing");
  const unsigned threads = thread_count(options.threads);
  const auto at_once = static_cast<unsigned>(std::clamp<size_t>(jobs.size(), 1, threads));
  run_jobs(jobs.size(), at_once, [&](size_t number, unsigned) {
    FileJob& job = jobs[number];
    FileCompressor file(folder, job, {level, threads / at_once}, meter);
    for (Entry& entry : job.entries) entry.bytes = file.add(entry.bytes);
    job.file = file.finish();
  });
  for (const FileJob& job : jobs) {
    for (const auto& [bytes, fields] : job.entries) {
      metadata.put(fields, "offset", metadata.integer(static_cast<int64_t>(bytes.offset_bytes)));
      metadata.put(fields, "length", metadata.integer(static_cast<int64_t>(bytes.count_bytes)));
      metadata.put(fields, "transform_descriptors", metadata.list({metadata.str(kDescriptor)}));
    }
  }
  remove_file(folder / kMetadataName);
  files[kMetadataName] =
      write_store_file(folder / kMetadataName, pickle::write(metadata, kMetadataProtocol));
}

}  // namespace

void check_store_options(const Target& target, const ConvertOptions& options) {
  if (target.format != Format::TorchDist && (options.zstd_level || options.integrity)) {
    throw Error(ErrorCode::InvalidArgument, {},
                std::string(options.integrity ? "integrity.json" : "zstd") +
                    " is available for torch_dist only, not for " +
                    std::string(name(target.format)));
  }
  const int level = options.zstd_level.value_or(ZstdCompressor::kLevelMin);
  if (level < ZstdCompressor::kLevelMin || level > ZstdCompressor::kLevelMax) {
    throw Error(ErrorCode::InvalidArgument, {},
                "expected a zstd level from 1 to 19, found " + std::to_string(level));
  }
}

std::vector<std::string> files_of_output(const Plan& plan, const ConversionSource& source,
                                         const ConvertOptions& options) {
  std::vector<std::string> files;
  for (const PlannedFile& file : plan.files) {
    files.push_back(file.path);
    if (options.zstd_level) files.push_back(file.path + kCompressedSuffix);
  }
  if (options.integrity) files.push_back((store_of(plan) / kIntegrityName).string());
  for (const LinkedFile& link : source.links) files.push_back(link.path);
  return files;
}

std::vector<FinishedPiece> finish_store(const Place& staging, const ConvertOptions& options,
                                        std::vector<FinishedPiece> written, Plan& plan) {
  if (!options.zstd_level && !options.integrity) return {};
  const std::filesystem::path store = store_of(plan);
  const StoreFiles before = files_in(store, std::move(written));
  StoreFiles files = before;
  if (options.zstd_level) {
    compress_entries(staging / store, *options.zstd_level, options.execute, files);
  }
  if (options.integrity) write_integrity(staging / store, options.execute, files);
  std::vector<FinishedPiece> changed;
  for (const auto& [name, file] : files) {
    const auto old = before.find(name);
    if (old != before.end() && old->second == file) continue;
    changed.push_back({(store / name).string(), {0, file.count_bytes}, file.crc32});
  }
  correct_sizes(changed, plan);
  return changed;
}

}  // namespace ckpt
