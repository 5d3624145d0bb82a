#include "execute/finish_store.h"

#include <ckpt/error.h>

#include "codec/zstd_compressor.h"
#include "execute/compress_entries.h"
#include "execute/write_integrity.h"
#include "format/integrity.h"

namespace ckpt {
namespace {

// The folder of the plan that .metadata is in.
std::filesystem::path store_of(const Plan& plan) {
  for (const PlannedFile& file : plan.files) {
    const std::filesystem::path path = file.path;
    if (path.filename() == ".metadata") return path.parent_path();
  }
  return {};
}

// Compresses the DCP folder in the staging and corrects the plan's sizes.
void compress(const std::filesystem::path& staging, const ConvertOptions& options, Plan& plan) {
  const std::filesystem::path store = store_of(plan);
  const auto sizes = compress_entries(
      staging / store, {*options.zstd_level, options.execute.threads, options.execute.stop});
  plan.total_bytes = 0;
  for (PlannedFile& file : plan.files) {
    const std::filesystem::path path = file.path;
    const auto size = sizes.find(path.filename().string());
    if (size != sizes.end() && path.parent_path() == store) file.count_bytes = size->second;
    plan.total_bytes += file.count_bytes;
  }
}

void add_integrity(const std::filesystem::path& staging, const ConvertOptions& options,
                   Plan& plan) {
  const std::filesystem::path store = store_of(plan);
  std::vector<std::string> names;
  for (const PlannedFile& file : plan.files) {
    const std::filesystem::path path = file.path;
    if (path.parent_path() == store) names.push_back(path.filename().string());
  }
  const uint64_t bytes = write_integrity(staging / store, names, options.execute.threads);
  plan.files.push_back({(store / kIntegrityName).string(), bytes});
  plan.total_bytes += bytes;
}

}  // namespace

void check_store_options(const Target& target, const ConvertOptions& options) {
  if (target.format != Format::TorchDist && (options.zstd_level || options.integrity)) {
    throw Error(ErrorCode::InvalidArgument, {},
                std::string(options.integrity ? "integrity.json" : "zstd") +
                    " belongs to torch_dist, not to " + std::string(name(target.format)));
  }
  const int level = options.zstd_level.value_or(ZstdCompressor::kLevelMin);
  if (level < ZstdCompressor::kLevelMin || level > ZstdCompressor::kLevelMax) {
    throw Error(ErrorCode::InvalidArgument, {},
                "zstd levels go from 1 to 19, not " + std::to_string(level));
  }
}

void finish_store(const std::filesystem::path& staging, const ConvertOptions& options, Plan& plan) {
  if (options.zstd_level) compress(staging, options, plan);
  if (options.integrity) add_integrity(staging, options, plan);
}

}  // namespace ckpt
