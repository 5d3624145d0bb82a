#include "execute/compress_entries.h"

#include <algorithm>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/error.h>
#include <ckpt/value.h>

#include "codec/pickle_reader.h"
#include "codec/pickle_writer.h"
#include "codec/zstd_compressor.h"
#include "io/directory.h"
#include "io/publish.h"
#include "io/worker_pool.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetadataName = ".metadata";
constexpr const char* kDescriptor = "stream.zstd/1";
constexpr const char* kNewSuffix = ".zstd-partial";
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr int kMetadataProtocol = 4;

// An entry of a file, and the node of .metadata that says where it is.
struct Entry {
  ByteRange bytes;
  NodeId fields = 0;
};
using EntriesByFile = std::map<std::string, std::vector<Entry>>;

ValueTree read_metadata(const fs::path& folder) {
  const File file = File::open(folder / kMetadataName, kMetadataName);
  std::vector<std::byte> bytes(file.size_bytes());
  file.read_at(0, bytes);
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
  FileCompressor(const fs::path& path, const CompressOptions& options, unsigned threads)
      : path_(path),
        new_path_(path.string() + kNewSuffix),
        options_(options),
        source_(File::open(path)),
        target_(File::create(new_path_, 0)),
        compressor_(options.level, threads),
        block_(kBlockBytes) {}

  // Returns where the entry now is.
  ByteRange add(const ByteRange& entry) {
    const uint64_t start_bytes = written_bytes_;
    compressor_.start(entry.count_bytes);
    uint64_t done_bytes = 0;
    do {
      if (options_.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
      const auto part = std::span(block_).first(
          static_cast<size_t>(std::min<uint64_t>(block_.size(), entry.count_bytes - done_bytes)));
      source_.read_at(entry.offset_bytes + done_bytes, part);
      done_bytes += part.size();
      compressor_.add(part, done_bytes == entry.count_bytes,
                      [this](std::span<const std::byte> bytes) { write(bytes); });
    } while (done_bytes < entry.count_bytes);
    return {start_bytes, written_bytes_ - start_bytes};
  }

  uint64_t finish() {
    remove_tree(path_);
    rename_to_free_name(new_path_, path_);
    return written_bytes_;
  }

 private:
  void write(std::span<const std::byte> bytes) {
    target_.write_at(written_bytes_, bytes);
    written_bytes_ += bytes.size();
  }

  fs::path path_, new_path_;
  const CompressOptions& options_;
  File source_, target_;
  ZstdCompressor compressor_;
  std::vector<std::byte> block_;
  uint64_t written_bytes_ = 0;
};

void set_place(ValueTree& tree, NodeId fields, ByteRange bytes) {
  tree.put(fields, "offset", tree.integer(static_cast<int64_t>(bytes.offset_bytes)));
  tree.put(fields, "length", tree.integer(static_cast<int64_t>(bytes.count_bytes)));
  tree.put(fields, "transform_descriptors", tree.list({tree.str(kDescriptor)}));
}

}  // namespace

std::map<std::string, uint64_t> compress_entries(const fs::path& folder,
                                                 const CompressOptions& options) {
  ValueTree metadata = read_metadata(folder);
  EntriesByFile files = entries_of(metadata);
  std::vector<EntriesByFile::value_type*> jobs;
  for (auto& file : files) jobs.push_back(&file);
  std::vector<uint64_t> sizes(jobs.size());
  const unsigned threads = thread_count(options.threads);
  const auto at_once = static_cast<unsigned>(std::clamp<size_t>(jobs.size(), 1, threads));
  run_jobs(jobs.size(), at_once, [&](size_t job, unsigned) {
    FileCompressor file(folder / jobs[job]->first, options, threads / at_once);
    for (Entry& entry : jobs[job]->second) entry.bytes = file.add(entry.bytes);
    sizes[job] = file.finish();
  });
  std::map<std::string, uint64_t> result;
  for (size_t i = 0; i < jobs.size(); ++i) {
    result[jobs[i]->first] = sizes[i];
    for (const Entry& entry : jobs[i]->second) set_place(metadata, entry.fields, entry.bytes);
  }
  const std::string text = pickle::write(metadata, kMetadataProtocol);
  remove_tree(folder / kMetadataName);
  File::create(folder / kMetadataName, text.size()).write_at(0, std::as_bytes(std::span(text)));
  result[kMetadataName] = text.size();
  return result;
}

}  // namespace ckpt
