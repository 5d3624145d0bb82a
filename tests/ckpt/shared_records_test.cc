// One long record of segments, written by several processes that take a share each.
#include <ckpt/archive_builder.h>
#include <ckpt/convert.h>
#include <ckpt/torch_dist_target.h>
#include <ckpt/write_target.h>

#include <boost/test/unit_test.hpp>

#include "support/targets.h"

using namespace test;

namespace {

constexpr uint64_t kElements = 40'000;  // of each tensor of the source

ckpt::NodeId add_tensor_to(ckpt::ArchiveBuilder& builder, ckpt::NodeId dict, const std::string& key,
                           ckpt::RecordSource source, uint64_t elements) {
  const ckpt::NodeId tensor =
      builder.add_tensor(ckpt::DType::Float32, {elements}, std::move(source));
  builder.tree().put(dict, key, tensor);
  return dict;
}

void save_source(const std::filesystem::path& path) {
  Random random(41);
  ckpt::ArchiveBuilder builder;
  const ckpt::NodeId dict = builder.tree().dict();
  for (int t = 0; t < 9; ++t) {
    add_tensor_to(builder, dict, "t" + std::to_string(t), random_bytes(random, 4 * kElements),
                  kElements);
  }
  ckpt::Target target;
  target.files.push_back({"", {builder.finish("archive", dict)}, {}});
  const MemoryPayloads none;
  const TemporaryFolder elsewhere;
  ckpt::write_target(std::move(target), {none, elsewhere.path()}, path, {});
}

// All tensors of the source, but for their first element, with gaps, in one.
std::vector<ckpt::Segment> segments_of(const ckpt::Checkpoint& source) {
  std::vector<ckpt::Segment> segments;
  uint64_t offset_bytes = 12;
  for (const ckpt::TensorEntry& tensor : source.catalog().tensors) {
    segments.push_back(
        {offset_bytes,
         {std::make_shared<const ckpt::TensorEntry>(tensor), ckpt::whole(tensor.shape)},
         1,
         kElements - 1});
    offset_bytes += 4 * kElements;
  }
  return segments;
}

ckpt::TargetArchive flat_archive(const ckpt::Checkpoint& source) {
  ckpt::ArchiveBuilder builder;
  const ckpt::NodeId dict = builder.tree().dict();
  add_tensor_to(builder, dict, "first", std::string(4000, '1'), 1000);
  add_tensor_to(builder, dict, "flat", segments_of(source), 9 * kElements + 8);
  add_tensor_to(builder, dict, "last", std::string(400, '2'), 100);
  return builder.finish("archive", dict);
}

ckpt::Target torch_target(const ckpt::Checkpoint& source) {
  ckpt::Target target;
  target.files.push_back({"flat.pt", {flat_archive(source)}, {}});
  return target;
}

ckpt::Target dist_target(const ckpt::Checkpoint& source) {
  const ckpt::TargetArchive flat = flat_archive(source);
  ckpt::DistSpec spec;
  spec.objects.push_back(
      {"flat", std::get<std::shared_ptr<const ckpt::ValueTree>>(flat.content), flat.records});
  ckpt::Target target;
  target.format = ckpt::Format::TorchDist;
  target.files = ckpt::make_torch_dist_files(spec);
  return target;
}

struct Case {
  ckpt::Target (*target)(const ckpt::Checkpoint&);
  ckpt::ConvertOptions options;
};

Files written_by(const std::filesystem::path& source_path, const Case& row, uint32_t processes) {
  const TemporaryFolder folder;
  const ckpt::Checkpoint source = ckpt::Checkpoint::open(source_path);
  for (uint32_t rank = 0; rank < processes; ++rank) {
    ckpt::ConvertOptions options = row.options;
    options.share = {rank, processes, 128 << 10};
    ckpt::ConversionSource from{source, source_path, &source};
    const auto report = ckpt::write_target(row.target(source), from, folder / "out", options);
    if (!options.zstd_level) {  // which replaces whole files, so that nothing is cut
      BOOST_TEST(report.stats.written_bytes < 9 * 4 * kElements / processes + (400u << 10));
    }
    BOOST_TEST((report.outcome ==
                (rank + 1 < processes ? ckpt::Outcome::PartWritten : ckpt::Outcome::Published)));
  }
  return tree_of(folder / "out");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shared_records)

BOOST_AUTO_TEST_CASE(any_number_of_processes_writes_the_bytes_of_one) {
  const TemporaryFolder folder;
  save_source(folder / "source.pt");
  ckpt::ConvertOptions plain, hashed, compressed;
  plain.verify = true;
  hashed.integrity = true;
  compressed.zstd_level = 1;
  compressed.integrity = true;
  const Case rows[] = {{torch_target, plain},
                       {dist_target, plain},
                       {dist_target, hashed},
                       {dist_target, compressed}};
  for (const Case& row : rows) {
    const Files files = written_by(folder / "source.pt", row, 1);
    for (const uint32_t processes : {2u, 3u, 5u}) {
      BOOST_TEST((written_by(folder / "source.pt", row, processes) == files), processes);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_flat_record_in_a_result_has_the_source_s_elements_and_zeros_between) {
  const TemporaryFolder folder;
  save_source(folder / "source.pt");
  const ckpt::Checkpoint source = ckpt::Checkpoint::open(folder / "source.pt");
  const Files files = written_by(folder / "source.pt", {torch_target, {}}, 4);
  const TemporaryFolder out;
  write_file(out / "flat.pt", files.at("flat.pt"));
  const ckpt::Checkpoint result = ckpt::Checkpoint::open(out / "flat.pt");
  const ckpt::TensorEntry& flat = *result.catalog().find_tensor("/flat");
  result.check_crc(flat);
  std::string found(ckpt::count_bytes(flat), '\0'), expected(12, '\0');
  result.read(flat, ckpt::whole(flat.shape), std::as_writable_bytes(std::span(found)));
  for (const ckpt::TensorEntry& tensor : source.catalog().tensors) {
    std::string bytes(ckpt::count_bytes(tensor), '\0');
    source.read(tensor, ckpt::whole(tensor.shape), std::as_writable_bytes(std::span(bytes)));
    expected += bytes.substr(4) + std::string(4, '\0');
  }
  expected.resize(found.size());
  BOOST_TEST((found == expected));
}

BOOST_AUTO_TEST_SUITE_END()
