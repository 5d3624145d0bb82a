#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <training/convert.h>

#include "io/system_calls.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace test {

namespace fs = std::filesystem;
using Tree = std::map<std::string, std::string>;

// A conversion with a small source of its own, on one thread.
struct Conversion {
  std::string name;
  fs::path source;
  std::function<optim::ConvertReport(const fs::path& destination, optim::ConvertOptions)> run;
};

// The real calls, without waiting for the device.
class Hasty final : public ckpt::SystemCalls {
 public:
  int fsync(int) override { return 0; }
};

inline optim::ConvertOptions on_one_thread() {
  optim::ConvertOptions options;
  options.base.execute.threads = 1;
  return options;
}

inline optim::ReshardOptions resharding(const optim::ConvertOptions& options,
                                        uint32_t data_parallel, bool link = false) {
  return {.base = options.base,
          .into = options.into,
          .sizes = {.data_parallel = data_parallel},
          .ownership = options.ownership,
          .link = link};
}

// What is at a path: a file's content under the name "", or a folder's tree.
inline Tree content_of(const fs::path& path) {
  if (fs::is_directory(path)) return tree_of(path);
  if (!fs::exists(fs::symlink_status(path))) return {};
  return {{"", read_file(path)}};
}

// `header`: less than 16 MiB.
inline void write_safetensors(const fs::path& path, const std::string& header,
                              const std::string& data) {
  std::string length(8, '\0');
  for (size_t i = 0; i < 3; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  write_file(path, length + header + data);
}

// Four tensors of 256 KiB, one after the other.
inline void write_large_safetensors(const fs::path& path) {
  constexpr size_t kTensorBytes = 256 << 10;
  std::string header, data;
  for (size_t i = 0; i < 4; ++i) {
    header += (i ? "," : "") + ("\"w" + std::to_string(i)) +
              R"(":{"dtype":"U8","shape":[262144],"data_offsets":[)" +
              std::to_string(i * kTensorBytes) + "," + std::to_string((i + 1) * kTensorBytes) +
              "]}";
    for (size_t at = 0; at < kTensorBytes; ++at) data += static_cast<char>(at * (i + 3) >> 4);
  }
  write_safetensors(path, "{" + header + "}", data);
}

// Sources in `folder`, and every direction that the tools know.
inline std::vector<Conversion> conversions_in(const TemporaryFolder& folder) {
  const fs::path golden = SHARDWISE_GOLDEN_DIR;
  const fs::path file = folder / "source.pt";
  const fs::path dcp = folder / "source_dcp";
  const fs::path layer_wise = folder / "source_layer_wise";
  const fs::path layer_wise_dcp = folder / "source_layer_wise_dcp";
  const fs::path flat = folder / "source_flat";
  fs::copy(golden / "torch_save_zip/zip.pt", file);
  fs::copy(golden / "lw_muon_bf16_torch_dp2/ckpt", layer_wise, fs::copy_options::recursive);
  fs::copy(golden / "lw_muon_bf16_torch_dist_dp2/ckpt", layer_wise_dcp,
           fs::copy_options::recursive);
  fs::copy(golden / "do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt", flat,
           fs::copy_options::recursive);
  const auto convert_to = [](const fs::path& source, ckpt::Format format) {
    return [=](const fs::path& destination, optim::ConvertOptions options) {
      options.base.format = format;
      return optim::convert(source, destination, options);
    };
  };
  convert_to(file, ckpt::Format::TorchDist)(dcp, on_one_thread());
  const auto reshard = [=](const fs::path& destination, const optim::ConvertOptions& options) {
    return optim::reshard(layer_wise, destination, resharding(options, 1));
  };
  const auto linked = [=](const fs::path& destination, const optim::ConvertOptions& options) {
    return optim::reshard(layer_wise_dcp, destination, resharding(options, 4, true));
  };
  const auto flattened = [=](const fs::path& destination, optim::ConvertOptions options) {
    options.base.format = ckpt::Format::Torch;
    options.sizes.data_parallel = 3;
    options.form.buckets = {optim::BucketChange::Size::Given, 1000};
    return optim::convert(flat, destination, options);
  };
  return {{"torch to torch_dist", file, convert_to(file, ckpt::Format::TorchDist)},
          {"torch_dist to torch", dcp, convert_to(dcp, ckpt::Format::Torch)},
          {"reshard", layer_wise, reshard},
          {"reshard linked", layer_wise_dcp, linked},
          {"flat buckets to a flat file", flat, flattened}};
}

// By two processes one after the other, one file in pieces, or files that are compressed after all
// are written. What has failed is left for them.
inline Conversion shared_conversion_in(const TemporaryFolder& folder, bool compressed = false) {
  const fs::path source = folder / "source.safetensors";
  write_large_safetensors(source);
  const auto run = [=](const fs::path& destination, optim::ConvertOptions options) {
    options.base.format = compressed ? ckpt::Format::TorchDist : ckpt::Format::Torch;
    if (compressed) options.base.zstd_level = 1;
    options.base.share = {0, 2, 128 << 10};
    optim::ConvertReport report = optim::convert(source, destination, options);
    if (report.outcome != ckpt::Outcome::PartWritten) return report;
    options.base.share.rank = 1;
    return optim::convert(source, destination, options);
  };
  return {"one file by two processes", source, run};
}

// With all that is done to files after they are written, one process; and to the third format.
inline std::vector<Conversion> other_conversions_in(const TemporaryFolder& folder) {
  const fs::path source = folder / "source.safetensors";
  write_large_safetensors(source);
  const auto finished = [=](const fs::path& destination, optim::ConvertOptions options) {
    options.base.format = ckpt::Format::TorchDist;
    options.base.zstd_level = 1;
    options.base.integrity = true;
    options.base.verify = true;
    return optim::convert(source, destination, options);
  };
  const auto to_safetensors = [=](const fs::path& destination, optim::ConvertOptions options) {
    options.base.format = ckpt::Format::Safetensors;
    return optim::convert(source, destination, options);
  };
  return {{"compressed, hashed, verified", source, finished},
          {"to safetensors", source, to_safetensors}};
}

// Adds an iteration to the root that is the destination.
inline Conversion adding_conversion_in(const TemporaryFolder& folder) {
  const fs::path source = folder / "source_layer_wise_dcp";
  fs::copy(fs::path(SHARDWISE_GOLDEN_DIR) / "lw_muon_bf16_torch_dist_dp2/ckpt", source,
           fs::copy_options::recursive);
  const auto run = [=](const fs::path& root, optim::ConvertOptions options) {
    options.into = true;
    return optim::reshard(source, root, resharding(options, 4));
  };
  return {"reshard into a root", source, run};
}

}  // namespace test
