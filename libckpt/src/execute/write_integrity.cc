#include "execute/write_integrity.h"

#include <algorithm>

#include <ckpt/hash.h>

#include "execute/sha256.h"
#include "format/integrity.h"
#include "io/file.h"
#include "io/worker_pool.h"

namespace ckpt {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

Sha256 hash_of(const std::filesystem::path& path) {
  const File file = File::open(path);
  std::vector<std::byte> block(kBlockBytes);
  Sha256Stream hash;
  for (uint64_t offset = 0; offset < file.size_bytes();) {
    const auto part = std::span(block).first(
        static_cast<size_t>(std::min<uint64_t>(block.size(), file.size_bytes() - offset)));
    file.read_at(offset, part);
    hash.update(part);
    offset += part.size();
  }
  return hash.finish();
}

}  // namespace

uint64_t write_integrity(const std::filesystem::path& folder, const std::vector<std::string>& names,
                         unsigned threads) {
  std::vector<Sha256> hashes(names.size());
  run_jobs(names.size(), thread_count(threads),
           [&](size_t job, unsigned) { hashes[job] = hash_of(folder / names[job]); });
  FileHashes by_name;
  for (size_t i = 0; i < names.size(); ++i) by_name.emplace(names[i], hashes[i]);
  const std::string text = integrity_text(by_name);
  File::create(folder / kIntegrityName, text.size()).write_at(0, std::as_bytes(std::span(text)));
  return text.size();
}

}  // namespace ckpt
