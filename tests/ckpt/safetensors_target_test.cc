#include <boost/test/unit_test.hpp>

#include <ckpt/archive_builder.h>
#include <ckpt/safetensors_target.h>
#include <ckpt/target.h>

#include <nlohmann/json.hpp>

#include "support/errors.h"

namespace {

using nlohmann::json;

ckpt::SafetensorsSpec::Tensor tensor_of(std::string key, uint64_t count,
                                        ckpt::DType dtype = ckpt::DType::Float32) {
  auto entry = std::make_shared<ckpt::TensorEntry>();
  entry->key = key;
  entry->dtype = dtype;
  entry->shape = {count};
  return {std::move(key), {entry, ckpt::whole(entry->shape)}};
}

ckpt::SafetensorsSpec four_tensors() {
  ckpt::SafetensorsSpec spec;
  for (const auto& [key, count] : {std::pair("a", 10), {"b", 20}, {"c", 100}, {"d", 1}}) {
    spec.tensors.push_back(tensor_of(key, static_cast<uint64_t>(count)));
  }
  spec.as_folder = true;
  return spec;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors_target)

BOOST_AUTO_TEST_CASE(a_folder_of_one_file_needs_no_index) {
  const ckpt::Target target = ckpt::make_safetensors_target(four_tensors());
  BOOST_TEST_REQUIRE(target.files.size() == 1u);
  BOOST_TEST(target.files[0].path == "model.safetensors");
}

BOOST_AUTO_TEST_CASE(files_are_cut_by_size_and_the_index_names_each_tensors_file) {
  ckpt::SafetensorsSpec spec = four_tensors();
  spec.file_bytes_max = 120;
  const ckpt::Target target = ckpt::make_safetensors_target(std::move(spec));
  BOOST_TEST_REQUIRE(target.files.size() == 4u);
  BOOST_TEST(target.files[0].path == "model-00001-of-00003.safetensors");
  BOOST_TEST(target.files[3].path == "model.safetensors.index.json");
  const json index = json::parse(target.files[3].bytes);
  BOOST_TEST(index["metadata"]["total_size"].get<uint64_t>() == 4u * 131);
  const json map = index["weight_map"];
  BOOST_TEST(map["a"] == map["b"]);
  BOOST_TEST(map["c"].get<std::string>() == "model-00002-of-00003.safetensors");
  BOOST_TEST(map["d"].get<std::string>() == "model-00003-of-00003.safetensors");
}

BOOST_AUTO_TEST_CASE(a_raw_file_is_its_header_and_its_records_back_to_back) {
  ckpt::SafetensorsSpec spec = four_tensors();
  spec.as_folder = false;
  const ckpt::Target target = ckpt::make_safetensors_target(std::move(spec));
  const ckpt::TargetArchive& archive = target.files.at(0).archives.at(0);
  const uint64_t header_bytes = std::get<ckpt::RawHeader>(archive.content).bytes.size();
  BOOST_TEST(header_bytes % 8 == 0u);
  const ckpt::ArchiveLayout layout = ckpt::archive_layout(archive);
  BOOST_TEST_REQUIRE(layout.records.size() == 4u);
  BOOST_TEST(layout.records[0].offset_bytes == header_bytes);
  BOOST_TEST(layout.records[1].offset_bytes == header_bytes + 40);
  BOOST_TEST(layout.count_bytes == header_bytes + 4u * 131);
}

BOOST_AUTO_TEST_CASE(types_that_safetensors_has_not_are_listed) {
  ckpt::SafetensorsSpec spec;
  spec.tensors = {tensor_of("kept", 2), tensor_of("lost", 2, ckpt::DType::Complex128)};
  const ckpt::Target target = ckpt::make_safetensors_target(std::move(spec));
  BOOST_TEST_REQUIRE(target.not_carried.size() == 1u);
  BOOST_TEST(target.not_carried[0].what == "lost");
  BOOST_TEST(target.files.at(0).archives.at(0).records.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_key_that_is_no_utf8_is_refused) {
  ckpt::SafetensorsSpec spec;
  spec.tensors = {tensor_of("\xff", 2)};
  const auto error = test::error_of([&] { ckpt::make_safetensors_target(std::move(spec)); });
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
}

BOOST_AUTO_TEST_SUITE_END()
