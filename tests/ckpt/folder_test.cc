// Checkpoints whose files are not on a disk: opened, hashed, verified and converted all the same.
#include <ckpt/convert.h>
#include <ckpt/files_beside.h>
#include <ckpt/folder.h>
#include <ckpt/hash.h>
#include <ckpt/plain_target.h>
#include <ckpt/verify.h>
#include <ckpt/write_target.h>

#include <boost/test/unit_test.hpp>

#include "support/convention.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/memory_folder.h"
#include "support/temporary_folder.h"

using ckpt::Checkpoint;
using test::MemoryFolder;

namespace {

Checkpoint open_in(const MemoryFolder& folder, const std::filesystem::path& path) {
  ckpt::OpenOptions options;
  options.convention = &test::kConvention;
  options.source = std::make_shared<const MemoryFolder>(folder);
  return Checkpoint::open(path, options);
}

std::string digest_of(const Checkpoint& checkpoint) {
  const ckpt::Inventory inventory = ckpt::native_inventory(checkpoint);
  return ckpt::hex(ckpt::hash(inventory, checkpoint).digest);
}

ckpt::ConvertOptions convert_to(ckpt::Format format) {
  ckpt::ConvertOptions options;
  options.format = format;
  return options;
}

// One of each format: roots of the two formats of a convention, plain DCP with and without
// compression, safetensors as a file and in parts, torch.save.
class Samples {
 public:
  Samples() {
    const auto zip = test::golden("torch_save_zip/zip.pt");
    ckpt::ConvertOptions compressed = convert_to(ckpt::Format::TorchDist);
    compressed.zstd_level = 1;
    ckpt::convert(zip, folder_ / "dcp", convert_to(ckpt::Format::TorchDist));
    ckpt::convert(zip, folder_ / "dcp_zstd", compressed);
    ckpt::convert(zip, folder_ / "model.safetensors", convert_to(ckpt::Format::Safetensors));
    ckpt::convert(zip, folder_ / "model", convert_to(ckpt::Format::Safetensors));
    paths_ = {zip,
              folder_ / "dcp",
              folder_ / "dcp_zstd",
              folder_ / "model.safetensors",
              folder_ / "model",
              test::golden("gpt1l_tiny_torch_dist_dp2"),
              test::golden("lw_muon_bf16_torch_dist_dp2/ckpt"),
              test::golden("lw_muon_bf16_torch_dp2/ckpt"),
              test::golden("gpt1l_tiny_torch_dp2")};
  }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

 private:
  test::TemporaryFolder folder_;
  std::vector<std::filesystem::path> paths_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(folder)

BOOST_AUTO_TEST_CASE(a_checkpoint_in_memory_holds_what_it_holds_on_the_disk) {
  const Samples samples;
  for (const std::filesystem::path& path : samples.paths()) {
    const Checkpoint disk = test::open_checkpoint(path);
    const Checkpoint memory = open_in(MemoryFolder::copy_of(path), path.filename());
    BOOST_TEST_CONTEXT(path) {
      BOOST_TEST((memory.catalog().format == disk.catalog().format));
      BOOST_TEST(memory.catalog().tensors.size() == disk.catalog().tensors.size());
      BOOST_TEST(memory.catalog().objects.size() == disk.catalog().objects.size());
      BOOST_TEST((memory.catalog().iteration == disk.catalog().iteration));
      BOOST_TEST(memory.files().size() == disk.files().size());
      BOOST_TEST(digest_of(memory) == digest_of(disk));
    }
  }
}

BOOST_AUTO_TEST_CASE(verify_finds_in_memory_what_it_finds_on_the_disk) {
  const Samples samples;
  for (const std::filesystem::path& path : samples.paths()) {
    const ckpt::Findings disk = ckpt::verify(test::open_checkpoint(path));
    const MemoryFolder folder = MemoryFolder::copy_of(path);
    const ckpt::Findings memory = ckpt::verify(open_in(folder, path.filename()));
    BOOST_TEST_CONTEXT(path) {
      BOOST_TEST(memory.findings.size() == disk.findings.size());
      BOOST_TEST(memory.read_bytes == disk.read_bytes);
      BOOST_TEST(memory.compared_checksums == disk.compared_checksums);
      BOOST_REQUIRE(memory.files.size() == disk.files.size());
      for (size_t f = 0; f < disk.files.size(); ++f) {
        BOOST_TEST(memory.files[f].path == disk.files[f].path);
        BOOST_TEST((memory.files[f].labelled_bytes == disk.files[f].labelled_bytes));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_byte_that_is_wrong_in_memory_is_found) {
  const auto path = test::golden("torch_save_zip/zip.pt");
  MemoryFolder folder = MemoryFolder::copy_of(path);
  const Checkpoint sound = open_in(folder, "zip.pt");
  const ckpt::StorageRegion region = sound.catalog().tensors.at(0).chunks.at(0).region;
  folder.content("zip.pt")[region.bytes.offset_bytes] ^= 1;
  const ckpt::Findings found = ckpt::verify(open_in(folder, "zip.pt"));
  BOOST_TEST(found.damaged());
  BOOST_TEST(found.failed_checksums == 1u);
}

BOOST_AUTO_TEST_CASE(a_file_that_is_missing_in_memory_is_not_looked_for_on_the_disk) {
  const auto path = test::golden("gpt1l_tiny_torch_dist_dp2");
  MemoryFolder folder = MemoryFolder::copy_of(path);
  const auto nothing = test::error_of([&] { open_in(folder, path); });  // a path of the disk
  BOOST_REQUIRE(nothing);
  BOOST_TEST((nothing->code() == ckpt::ErrorCode::NotFound));
  const Checkpoint whole = open_in(folder, path.filename());
  const std::string lost = (whole.folder() / whole.catalog().files.at(0).path).string();
  folder.erase(lost);
  const auto error = test::error_of([&] { open_in(folder, path.filename()); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(test::contains(error->problem(), "is missing"));
}

BOOST_AUTO_TEST_CASE(a_checkpoint_in_memory_is_converted_to_the_disk) {
  const auto path = test::golden("torch_save_zip/zip.pt");
  const test::TemporaryFolder folder;
  const Checkpoint memory = open_in(MemoryFolder::copy_of(path), "zip.pt");
  const ckpt::TargetSpec spec{.format = ckpt::Format::TorchDist, .keys = {}};
  const ckpt::ConversionSource from{memory, folder / "nowhere/else", &memory};
  std::filesystem::create_directories(folder / "nowhere/else");
  ckpt::write_target(ckpt::make_target(memory, spec), from, folder / "memory", {});
  ckpt::convert(path, folder / "disk", convert_to(ckpt::Format::TorchDist));
  BOOST_TEST((test::tree_of(folder / "memory") == test::tree_of(folder / "disk")));
}

BOOST_AUTO_TEST_CASE(what_lies_beside_is_listed_in_memory_too) {
  const auto path = test::golden("lw_muon_bf16_torch_dist_dp2/ckpt");
  const Checkpoint memory = open_in(MemoryFolder::copy_of(path), path.filename());
  const auto disk = ckpt::files_beside(test::open_checkpoint(path));
  const auto found = ckpt::files_beside(memory);
  BOOST_REQUIRE(found.size() == disk.size());
  for (size_t f = 0; f < disk.size(); ++f) BOOST_TEST(found[f].shown == disk[f].shown);
}

BOOST_AUTO_TEST_SUITE_END()
