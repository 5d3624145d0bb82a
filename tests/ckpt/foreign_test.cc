// What other programs write is called by its name, and nothing of ours is taken for it.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>

#include "format/foreign/foreign.h"
#include "support/convention.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

using namespace std::string_literals;
using test::contains;
using test::error_of;
using test::TemporaryFolder;

namespace {

struct ForeignRow {
  std::string content;  // or a name
  std::string called;   // a part of it; empty: nothing foreign
};
std::ostream& operator<<(std::ostream& out, const ForeignRow& row) {
  return out << (row.called.empty() ? "nothing foreign" : row.called);
}

const ForeignRow kFiles[] = {
    {"GGUF\3\0\0\0"s, "GGUF"},
    {"\x93NUMPY\1\0"s, "NumPy array"},
    {"\x89HDF\r\n\x1a\n"s, "HDF5"},
    {"\x1c\0\0\0TFL3"s, "TensorFlow Lite"},
    {"\x1f\x8b\x08\0"s, "gzip"},
    {"BZh91AY&SY", "bzip2"},
    {"\xFD\x37zXZ\0\0"s, "xz"},
    {"\x28\xB5\x2F\xFD\x24", "zstd"},
    {"\x04\x22\x4D\x18\x60", "lz4"},
    {"7z\xBC\xAF\x27\x1C\0"s, "7-Zip"},
    {"PK\x05\x06"s + std::string(18, '\0'), "empty zip"},
    {"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"},
    {"global_step100", "DeepSpeed"},
    {"<!DOCTYPE html>\n<html>", "HTML"},
    {"\n  <HTML><body>404", "HTML"},
    {"\xEF\xBB\xBF<!doctype HTML>", "HTML"},
    {"<?xml version=\"1.0\"?><Error>", "XML"},
    {"\x80\x04\x95\x0a\0\0\0\0\0\0\0}\x94."s, "Python pickle"},
    {"\x80\x02"
     "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81."s,
     ".metadata"},
    {"\x08\x07\x12\x07pytorch\x1a\x05", "ONNX"},
    {"index of a bundle\x57\xFB\x80\x8B\x24\x75\x47\xDB", "TensorFlow"},
    {"", ""},
    {"nothing that is known", ""},
    {"\x80\x04 cut off", ""},         // no pickle without its STOP
    {"\x08\x07\x12\x40pytorch", ""},  // the name ends behind the file
    {"{\"weight_map\": {}}", ""},
    {"\x10\0\0\0\0\0\0\0{\"a\": 1}"s, ""},  // safetensors
};

struct Members {
  std::vector<std::string> names;
  std::string called;
};
std::ostream& operator<<(std::ostream& out, const Members& row) {
  return out << (row.called.empty() ? "nothing foreign" : row.called);
}

const Members kZips[] = {
    {{"m/data.pkl", "m/code/m.py", "m/constants.pkl", "m/version"}, "TorchScript"},
    {{"m/data.pkl", "m/code/m.py"}, "TorchScript"},
    {{"m/data/weights/weight_0", "m/models/model.json", "m/archive_format"}, "torch.export"},
    {{"serialized_exported_program.json", "serialized_state_dict.pt", "version"}, "torch.export"},
    {{"m/.data/0.storage", "m/model/model.pkl", "m/.data/extern_modules"}, "torch.package"},
    {{"a.npy", "layer/b.npy"}, "NumPy archive"},
    {{"metadata.json", "config.json", "model.weights.h5"}, "Keras"},
    {{"notes.txt"}, "zip archive that torch.save did not write"},
    {{}, "zip archive that torch.save did not write"},
    {{"archive/data.pkl", "archive/byteorder", "archive/data/0", "archive/version"}, ""},
    {{"archive/byteorder", "archive/data/0", "archive/version"}, ""},  // damaged: no data.pkl
};

const Members kTars[] = {
    {{"./", "./model_config.yaml", "./model_weights.ckpt"}, "NeMo"},
    {{"model_config.yaml"}, "NeMo"},
    {{"sys_info", "pickle", "tensors", "storages"}, "before torch 0.1.10"},
    {{"notes.txt"}, "a tar archive"},
    {{}, "a tar archive"},
};

const Members kFolders[] = {
    {{"global_step10", "latest", "zero_to_fp32.py"}, "DeepSpeed"},
    {{"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"}, "DeepSpeed"},
    {{"config.json", "pytorch_model.bin.index.json"}, "several torch.save files"},
    {{"_CHECKPOINT_METADATA", "default"}, "Orbax"},
    {{"_METADATA", "d", "manifest.ocdbt"}, "Orbax"},
    {{"checkpoint", "m.ckpt.data-00000-of-00001", "m.ckpt.index"}, "TensorFlow"},
    {{"assets", "saved_model.pb", "variables"}, "TensorFlow"},
    {{".zarray", "0.0"}, "Zarr"},
    {{"model-q4.gguf"}, "GGUF"},
    {{"global_step10", "latest"}, "DeepSpeed"},
    {{"global_step_10", "global_step"}, ""},
    {{"fsdp_config.json", "model_world_size_2_rank_0.pt"}, ""},  // a checkpoint
    {{}, ""},
    {{"README.md", "iter_0000003"}, ""},
};

const ForeignRow kAddresses[] = {
    {"s3://bucket/ckpt", "S3"},
    {"gs://bucket/ckpt", "Google"},
    {"hf://org/model", "Hugging Face"},
    {"https://host/model.pt", "web"},
    {"hdfs://host/ckpt", "HDFS"},
    {"file:///ckpt", "file address"},
    {"msc://profile/ckpt", "Multi-Storage"},
    {"az://container/ckpt", "Azure"},
    {"ftp://host/ckpt", "an address"},
    {"ckpt/iter_0000003", ""},
    {"/ckpt", ""},
    {"://", ""},
    {"a b://c", ""},
    {"c:/ckpt", ""},
};

std::string called(const ckpt::Foreign* foreign) {
  return foreign == nullptr ? "" : std::string(foreign->name);
}

void check_called(const std::string& found, const std::string& wanted) {
  BOOST_TEST(found.empty() == wanted.empty(), found);
  BOOST_TEST(contains(found, wanted), found);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(foreign)

BOOST_DATA_TEST_CASE(files_are_known_by_their_first_and_last_bytes, kFiles, row) {
  const std::string tail =
      row.content.substr(row.content.size() - std::min<size_t>(8, row.content.size()));
  check_called(called(ckpt::foreign_content(row.content, tail)), row.called);
}

BOOST_DATA_TEST_CASE(zip_archives_are_known_by_their_members, kZips, row) {
  check_called(called(ckpt::foreign_archive(row.names)), row.called);
}

BOOST_DATA_TEST_CASE(tar_archives_are_known_by_their_members, kTars, row) {
  check_called(called(&ckpt::foreign_tar(row.names)), row.called);
}

BOOST_DATA_TEST_CASE(folders_are_known_by_their_entries, kFolders, row) {
  check_called(called(ckpt::foreign_folder(row.names)), row.called);
}

BOOST_DATA_TEST_CASE(addresses_are_known_by_their_scheme, kAddresses, row) {
  check_called(called(ckpt::foreign_address(row.content)), row.called);
}

BOOST_DATA_TEST_CASE(every_refusal_says_what_was_expected_and_what_to_do, kFiles, row) {
  if (row.called.empty()) return;
  const TemporaryFolder folder;
  test::write_file(folder / "named", row.content);
  const auto error = error_of([&] { test::open_checkpoint(folder / "named"); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
  BOOST_TEST(error->where().file == (folder / "named").string());
  BOOST_TEST(contains(error->problem(), "; expected "));
  BOOST_TEST(!error->hint().empty());
  BOOST_TEST(!contains(error->hint(), "{"));  // places are filled in
}

BOOST_AUTO_TEST_CASE(a_pointer_in_place_of_a_file_of_a_folder_is_called_so) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  for (const char* const name :
       {"model.safetensors", "mp_rank_00/model_optim_rng.pt", ".metadata"}) {
    const TemporaryFolder folder;
    test::write_file(folder / name, pointer);
    const auto error = error_of([&] { test::open_checkpoint(folder.path()); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(contains(error->problem(), "Git LFS pointer"), error->problem());
  }
}

BOOST_AUTO_TEST_CASE(a_damaged_file_of_a_folder_stays_damaged) {
  const TemporaryFolder folder;
  test::write_file(folder / ".metadata", "\x80\x02}q\1.");  // a pickle, but no Metadata
  const auto error = error_of([&] { test::open_checkpoint(folder.path()); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_SUITE_END()
