// Entries of .distcp files as zstd frames.
#include <algorithm>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/run_jobs.h>
#include <ckpt/value_tree.h>

#include "codec/crc32.h"
#include "codec/pickle.h"
#include "codec/zstd_stream.h"
#include "io/directory.h"
#include "io/publish.h"
#include "publish/finish_store.h"
#include "work/workers.h"

namespace ckpt {
namespace {

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

void set_place(ValueTree& tree, NodeId fields, ByteRange bytes) {
  tree.put(fields, "offset", tree.integer(static_cast<int64_t>(bytes.offset_bytes)));
  tree.put(fields, "length", tree.integer(static_cast<int64_t>(bytes.count_bytes)));
  tree.put(fields, "transform_descriptors", tree.list({tree.str(kDescriptor)}));
}

}  // namespace

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
    for (const Entry& entry : job.entries) set_place(metadata, entry.fields, entry.bytes);
  }
  remove_file(folder / kMetadataName);
  files[kMetadataName] =
      write_store_file(folder / kMetadataName, pickle::write(metadata, kMetadataProtocol));
}

}  // namespace ckpt
