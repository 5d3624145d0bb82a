#pragma once

#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/document.h>
#include <ckpt/execute.h>

#include "support/errors.h"
#include "support/random_tensors.h"
#include "support/temporary_folder.h"

// Small targets, and ways to execute them.
namespace test {

using Files = std::map<std::string, std::string>;

// The least memory: pieces of 64 KiB, so that archives of some hundred KiB come in many of them.
inline ckpt::ExecuteOptions options_of(unsigned threads, uint64_t memory_bytes = 0) {
  ckpt::ExecuteOptions options;
  options.threads = threads;
  options.memory_bytes_max = memory_bytes;
  return options;
}

inline std::shared_ptr<const ckpt::TensorEntry> shared(const KnownTensor& tensor) {
  return std::make_shared<const ckpt::TensorEntry>(tensor.entry);
}

inline ckpt::TargetRecord record_of(const KnownTensor& tensor, const ckpt::Box& box) {
  return {ckpt::element_count(box.sizes) * tensor.element_bytes(),
          ckpt::TensorSource{shared(tensor), box}};
}

inline ckpt::TargetArchive bare_archive(const KnownTensor& tensor, const ckpt::Box& box) {
  return {"archive", ckpt::BareTensor{tensor.entry.dtype, box.sizes}, {record_of(tensor, box)}};
}

inline ckpt::TargetArchive tree_archive(std::vector<ckpt::TargetRecord> records) {
  auto tree = std::make_shared<ckpt::ValueTree>();
  tree->set_root(tree->list({tree->str("any"), tree->integer(7)}));
  return {"tree", std::move(tree), std::move(records)};
}

inline ckpt::Target one_file(std::vector<ckpt::TargetArchive> archives) {
  ckpt::Target target;
  target.files.push_back({"f", std::move(archives), {}});
  return target;
}

inline ckpt::ExecuteStats run_in(const TemporaryFolder& folder, const ckpt::Target& target,
                                 const ckpt::PayloadSource& source,
                                 const ckpt::ExecuteOptions& options) {
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  const ckpt::ExecuteStats stats =
      ckpt::execute(target, ckpt::make_plan(target), source, staging, options);
  staging.commit();
  return stats;
}

// The files before the commit, which would wait for the device.
inline Files written(const ckpt::Target& target, const ckpt::PayloadSource& source,
                     const ckpt::ExecuteOptions& options) {
  const TemporaryFolder folder;
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  ckpt::execute(target, ckpt::make_plan(target), source, staging, options);
  return tree_of(staging.folder());
}

// Runs into an error, and looks whether anything is left behind.
inline ckpt::Error failure(const ckpt::Target& target, const ckpt::PayloadSource& source,
                           const ckpt::ExecuteOptions& options) {
  const TemporaryFolder folder;
  auto error = error_of([&] { run_in(folder, target, source, options); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST(tree_of(folder.path()).empty());
  return *error;
}

// The storages of a file of archives back to back, each archive read strictly, each CRC-32 checked.
inline std::vector<std::string> storages_of(const std::string& file,
                                            const ckpt::TargetFile& target) {
  const MemoryFile bytes(file);
  std::vector<std::string> storages;
  uint64_t offset = 0;
  for (const ckpt::TargetArchive& archive : target.archives) {
    const uint64_t count = ckpt::archive_layout(archive).count_bytes;
    const auto members = ckpt::zip::read_directory(bytes, {offset, count});
    BOOST_REQUIRE(members.size() == archive.records.size() + 6);
    for (size_t m = 0; m < members.size(); ++m) {
      std::string data = file.substr(members[m].data.offset_bytes, members[m].data.count_bytes);
      BOOST_REQUIRE(members[m].crc32.value() == ckpt::crc32(bytes_of(data)));
      if (m >= 4 && m < 4 + archive.records.size()) storages.push_back(std::move(data));
    }
    offset += count;
  }
  BOOST_REQUIRE(offset == file.size());
  return storages;
}

// A tensor of 200 KiB in one storage: in pieces of 64 KiB it is sliced.
struct Sliced {
  Sliced() {
    Random random(20);
    tensor.entry.key = "sliced.weight";
    tensor.entry.dtype = ckpt::DType::Float32;
    tensor.entry.shape = {100, 512};
    tensor.content = random_bytes(random, 100 * 512 * 4);
    tensor.entry.chunks.push_back(
        {ckpt::whole(tensor.entry.shape), payloads.add_storage(tensor.content), 0});
  }
  ckpt::Target target(const ckpt::Box& box) const { return one_file({bare_archive(tensor, box)}); }
  ckpt::Box all() const { return ckpt::whole(tensor.entry.shape); }

  MemoryPayloads payloads;
  KnownTensor tensor;
};

}  // namespace test
