#include "targets/archive_writer.h"

#include <ckpt/archive_builder.h>
#include <ckpt/document.h>

#include <boost/test/unit_test.hpp>

#include "codec/crc32.h"
#include "codec/pickle.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/memory_payloads.h"
#include "support/zip_directory.h"

using ckpt::ArchiveImage;
using ckpt::TargetArchive;

namespace {

std::vector<ckpt::zip::Member> members_of(const std::string& file) {
  return ckpt::zip::read_directory(test::MemoryFile(file), {0, file.size()});
}

std::string content_of(const std::string& file, const ckpt::zip::Member& member) {
  return file.substr(member.data.offset_bytes, member.data.count_bytes);
}

// An archive as its parts: what PyTorch put into it, in its order.
struct Parts {
  std::string name, pickle, id;
  std::vector<std::string> storages;
};

Parts parts_of(const std::string& file) {
  const auto members = members_of(file);
  Parts parts;
  parts.name = members[0].name.substr(0, members[0].name.find('/'));
  parts.pickle = content_of(file, members[0]);
  parts.id = content_of(file, members.back());
  for (const auto& member : members) {
    if (!member.name.starts_with(parts.name + "/data/")) continue;
    parts.storages.push_back(content_of(file, member));
  }
  return parts;
}

ArchiveImage image_of(const Parts& parts) {
  std::vector<uint64_t> record_bytes;
  for (const std::string& storage : parts.storages) record_bytes.push_back(storage.size());
  return {parts.name, parts.pickle, record_bytes};
}

std::string written(const Parts& parts) {
  const ArchiveImage image = image_of(parts);
  std::string file;
  std::vector<uint32_t> crcs;
  for (size_t m = 0; m < image.member_count(); ++m) {
    std::string data = parts.id;
    if (image.is_record(m)) {
      data = parts.storages[ArchiveImage::record_of(m)];
    } else if (m != image.id_member()) {
      data = std::string(image.fixed_content(m));
    }
    crcs.push_back(ckpt::crc32(test::bytes_of(data)));
    file += image.layout().local_header(m) + data + image.layout().descriptor(m, crcs[m]);
  }
  return file + test::directory_of(image.layout(), crcs);
}

TargetArchive bare(ckpt::DType dtype, ckpt::Extents shape, std::string data) {
  TargetArchive archive;
  archive.name = "archive";
  archive.content = ckpt::BareTensor{dtype, std::move(shape)};
  archive.records.resize(1);
  archive.records[0].count_bytes = data.size();
  archive.records[0].source = std::move(data);
  return archive;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(archive_writer)

BOOST_AUTO_TEST_CASE(given_pickle_storages_and_id_archives_are_those_of_pytorch) {
  const std::string iteration = "lw_muon_bf16_torch_dp2/ckpt/iter_0000003/mp_rank_00/";
  for (const std::string& path :
       {std::string("torch_save_zip/zip.pt"), std::string("torch_save_zip/bare_tensor.pt"),
        std::string("torch_save_zip/empty_list.pt"), iteration + "layer_wise_optimizer_0.pt",
        iteration + "layer_wise_optimizer_1.pt", iteration + "model_optim_rng.pt",
        std::string("lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003/common.pt")}) {
    const std::string file = test::read_file(test::golden(path));
    BOOST_TEST((written(parts_of(file)) == file), path);
  }
}

BOOST_AUTO_TEST_CASE(entries_of_distcp_files_are_those_of_pytorch) {
  const std::string file =
      test::read_file(test::golden("lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003/__1_0.distcp"));
  size_t start = 0;
  size_t count = 0;
  for (; start < file.size(); ++count) {  // archives back to back, each up to its end record
    const size_t end = file.find("PK\5\6", start) + 22;
    const std::string entry = file.substr(start, end - start);
    BOOST_TEST_REQUIRE((written(parts_of(entry)) == entry), "entry at " << start);
    start = end;
  }
  BOOST_TEST(count > 20);
}

// All that PyTorch and Megatron wrote for this project.
BOOST_AUTO_TEST_CASE(every_torch_save_file_of_the_fixtures_is_rebuilt_byte_for_byte) {
  const std::filesystem::path fixtures = SHARDWISE_FIXTURES_DIR;
  size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(fixtures)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".pt" || name == "legacy.pt" || name == "zip_align4096.pt" ||
        name == "zip_nocrc.pt") {  // no zip, another alignment, checksums left out
      continue;
    }
    const std::string file = test::read_file(entry.path());
    BOOST_TEST((written(parts_of(file)) == file), entry.path());
    ++count;
  }
  BOOST_TEST(count > 30);
}

BOOST_AUTO_TEST_CASE(a_bare_tensor_is_pickled_as_a_tensor_that_owns_storage_0) {
  const TargetArchive archive = bare(ckpt::DType::BFloat16, {2, 3}, std::string(12, 'x'));
  const ArchiveImage image(archive);
  const std::string pickle(image.fixed_content(0));
  ckpt::ByteReader reader(test::bytes_of(pickle));
  const ckpt::ValueTree tree = ckpt::pickle::read(reader);
  const auto view = ckpt::as_tensor(tree.root());
  BOOST_REQUIRE(view);
  BOOST_TEST(view->storage_key == "0");
  BOOST_TEST(view->storage_count_bytes == 12);
  BOOST_TEST((view->dtype == ckpt::DType::BFloat16));
  BOOST_TEST((view->shape == ckpt::Extents{2, 3}));
  BOOST_TEST((view->strides == ckpt::Extents{3, 1}));
}

BOOST_AUTO_TEST_CASE(sizes_and_places_are_known_before_anything_is_written) {
  TargetArchive archive = bare(ckpt::DType::UInt8, {100}, std::string(100, 'x'));
  const ckpt::ArchiveLayout layout = ckpt::archive_layout(archive);
  const ArchiveImage image(archive);
  BOOST_TEST(layout.count_bytes == image.layout().count_bytes());
  BOOST_REQUIRE(layout.records.size() == 1);
  BOOST_TEST(layout.records[0].offset_bytes == image.place(4).data_offset_bytes);
  BOOST_TEST(layout.records[0].count_bytes == 100);
  BOOST_TEST(image.place(4).name == "archive/data/0");
}

BOOST_AUTO_TEST_CASE(the_serialization_id_is_made_from_the_content) {
  const auto id_of = [](const TargetArchive& archive, uint32_t crc) {
    const ArchiveImage image(archive);
    return image.serialization_id(std::vector<uint32_t>(image.id_member(), crc));
  };
  const TargetArchive a = bare(ckpt::DType::UInt8, {3}, "abc");
  const TargetArchive b = bare(ckpt::DType::UInt8, {4}, "abcd");
  BOOST_TEST(id_of(a, 1).size() == 40);
  BOOST_TEST(id_of(a, 1).find_first_not_of("0123456789") == std::string::npos);
  BOOST_TEST(id_of(a, 1) == id_of(a, 1));
  BOOST_TEST(id_of(a, 1) != id_of(a, 2));
  BOOST_TEST(id_of(a, 1) != id_of(b, 1));
}

BOOST_AUTO_TEST_CASE(a_bare_tensor_has_exactly_one_record) {
  TargetArchive archive = bare(ckpt::DType::UInt8, {3}, "abc");
  archive.records.clear();
  const auto error = test::error_of([&] { ckpt::archive_layout(archive); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::InvalidArgument));
}

BOOST_AUTO_TEST_SUITE_END()
