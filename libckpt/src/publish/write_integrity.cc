#include "publish/write_integrity.h"

#include <algorithm>
#include <vector>

#include <ckpt/hash.h>

#include "codec/sha256.h"
#include "codec/integrity.h"
#include "io/worker_pool.h"
#include "work/work_meter.h"

namespace ckpt {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

Sha256 hash_of(StoreFileReader file, WorkMeter& meter) {
  std::vector<std::byte> block(kBlockBytes);
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

}  // namespace

void write_integrity(const std::filesystem::path& folder, const ExecuteOptions& options,
                     StoreFiles& files) {
  std::vector<const StoreFiles::value_type*> jobs;
  for (const auto& file : files) jobs.push_back(&file);
  std::vector<Sha256> hashes(jobs.size());
  WorkMeter meter(options, bytes_of(files), "hashing");
  run_jobs(jobs.size(), thread_count(options.threads), [&](size_t number, unsigned) {
    const auto& [name, file] = *jobs[number];
    hashes[number] = hash_of({folder / name, file}, meter);
  });
  FileHashes by_name;
  for (size_t i = 0; i < jobs.size(); ++i) by_name.emplace(jobs[i]->first, hashes[i]);
  files[kIntegrityName] = write_store_file(folder / kIntegrityName, integrity_text(by_name));
}

}  // namespace ckpt
