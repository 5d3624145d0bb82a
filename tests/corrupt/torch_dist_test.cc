// Hostile and damaged torch_dist folders, by the classes of docs/security.md: a golden folder with
// one change.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>

#include <cstdlib>
#include <functional>

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "codec/pickle.h"
#include "format/torch_dist/dist_metadata.h"
#include "support/convention.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/memory_payloads.h"
#include "support/temporary_folder.h"

namespace data = boost::unit_test::data;
namespace fs = std::filesystem;
using ckpt::ErrorCode;
using ckpt::NodeId;
using ckpt::Value;
using ckpt::ValueTree;

namespace {

constexpr const char* kGolden = "lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003";

// The fields of the Metadata object, to be changed.
using MetadataChange = std::function<void(ValueTree&, Value fields)>;

void change_metadata(const fs::path& folder, const MetadataChange& change) {
  const std::string bytes = test::read_file(folder / ".metadata");
  ckpt::ByteReader reader(test::bytes_of(bytes));
  ValueTree tree = ckpt::pickle::read(reader);
  change(tree, *tree.root().state());
  test::write_file(folder / ".metadata", ckpt::pickle::write(tree, 4));
}

Value first_tensor(Value fields) {
  const Value entries = fields.at("state_dict_metadata");
  for (size_t i = 0;; ++i) {
    const Value entry = entries.item(i).second;
    if (entry.callable().name() == "TensorStorageMetadata") return *entry.state();
  }
}

Value first_place(Value fields) { return *fields.at("storage_data").item(0).second.state(); }

std::function<void(const fs::path&)> place_with(const char* field, int64_t value) {
  return [=](const fs::path& folder) {
    change_metadata(folder, [&](ValueTree& tree, Value fields) {
      tree.put(first_place(fields).id(), field, tree.integer(value));
    });
  };
}

std::function<void(const fs::path&)> place_in(const char* path) {
  return [=](const fs::path& folder) {
    change_metadata(folder, [&](ValueTree& tree, Value fields) {
      tree.put(first_place(fields).id(), "relative_path", tree.str(path));
    });
  };
}

// The first chunk of the first tensor gets other offsets or sizes.
std::function<void(const fs::path&)> chunk_with(const char* field, ckpt::Extents numbers) {
  return [=](const fs::path& folder) {
    change_metadata(folder, [&](ValueTree& tree, Value fields) {
      const Value chunk = first_tensor(fields).at("chunks")[0];
      tree.put(chunk.state()->id(), field, ckpt::add_size(tree, numbers));
    });
  };
}

std::function<void(const fs::path&)> shape_of(ckpt::Extents numbers) {
  return [=](const fs::path& folder) {
    change_metadata(folder, [&](ValueTree& tree, Value fields) {
      tree.put(first_tensor(fields).id(), "size", ckpt::add_size(tree, numbers));
    });
  };
}

std::function<void(const fs::path&)> file_with(const char* name, std::string content) {
  return [=](const fs::path& folder) { test::write_file(folder / name, content); };
}

struct Case {
  const char* name;  // begins with the class
  std::function<void(const fs::path&)> change;
  ErrorCode code;
  const char* problem;  // a part of it
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

const Case kCases[] = {
    {"D1 .metadata is no Metadata", file_with(".metadata", "\x80\x02K\x01."), ErrorCode::Corrupt,
     "an object of class Metadata"},
    {"D1 .metadata is empty", file_with(".metadata", ""), ErrorCode::Corrupt, "without STOP"},
    {"D1 the entries are a number",
     [](const fs::path& folder) {
       change_metadata(folder, [](ValueTree& tree, Value fields) {
         tree.put(fields.id(), "state_dict_metadata", tree.integer(1));
       });
     },
     ErrorCode::Corrupt, "expected a dict"},
    {"D2 a chunk leaves its tensor", chunk_with("offsets", {1 << 20, 0}), ErrorCode::Corrupt, ""},
    {"D2 offsets of another dimension", chunk_with("offsets", {0}), ErrorCode::Corrupt, ""},
    {"D2 a product beyond 63 bits", shape_of({~uint64_t{0} >> 1, ~uint64_t{0} >> 1}),
     ErrorCode::Corrupt, ""},
    {"D2 a hole", shape_of({1 << 20, 1 << 20}), ErrorCode::Corrupt, ""},
    {"D3 a path above the folder", place_in("../__0_0.distcp"), ErrorCode::Corrupt,
     "is not a plain file name"},
    {"D3 an absolute path", place_in("/etc/passwd"), ErrorCode::Corrupt,
     "is not a plain file name"},
    {"D3 a missing file", place_in("__9_9.distcp"), ErrorCode::Corrupt, "is missing"},
    {"D3 an offset beyond the file", place_with("offset", int64_t{1} << 62), ErrorCode::Corrupt,
     "truncated: "},
    {"D3 a negative offset", place_with("offset", -1), ErrorCode::Corrupt, "is not a whole number"},
    {"D3 a length beyond the file", place_with("length", int64_t{1} << 62), ErrorCode::Corrupt,
     "truncated: "},
    {"D9 a backend that is not known", file_with("metadata.json", R"({"sharded_backend": "zarr"})"),
     ErrorCode::Unsupported, "zarr"},
    {"D9 metadata.json is junk", file_with("metadata.json", "{"), ErrorCode::Corrupt, ""},
    {"F1 .metadata is a folder",
     [](const fs::path& folder) {
       fs::remove(folder / ".metadata");
       fs::create_directory(folder / ".metadata");
     },
     ErrorCode::IoFailure, ""},
    {"F1 a .distcp file is a FIFO",
     [](const fs::path& folder) {
       fs::remove(folder / "__0_0.distcp");
       mkfifo((folder / "__0_0.distcp").c_str(), 0600);
     },
     ErrorCode::IoFailure, ""},
    {"F1 a .distcp file is a link to itself",
     [](const fs::path& folder) {
       fs::remove(folder / "__0_0.distcp");
       fs::create_symlink("__0_0.distcp", folder / "__0_0.distcp");
     },
     ErrorCode::Corrupt, ""},
};

struct Copy {
  Copy() {
    for (const auto& entry : fs::directory_iterator(test::golden(kGolden))) {
      fs::copy(entry.path(), folder.path() / entry.path().filename());
    }
  }
  test::TemporaryFolder folder;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(corrupt_torch_dist)

BOOST_DATA_TEST_CASE(is_refused, data::make(kCases), c) {
  const Copy copy;
  BOOST_REQUIRE(!test::error_of([&] { test::open_checkpoint(copy.folder.path()); }));
  c.change(copy.folder.path());
  const auto error = test::error_of([&] { test::open_checkpoint(copy.folder.path()); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == c.code), error->what());
  BOOST_TEST(!error->where().file.empty(), error->what());
  BOOST_TEST(test::contains(error->problem(), c.problem), error->what());
}

// D3, where only names and shapes are wanted: what .metadata says, and no values.
BOOST_AUTO_TEST_CASE(D3_a_missing_file_is_as_long_as_metadata_says_where_that_is_wanted) {
  const Copy copy;
  const auto whole = test::open_checkpoint(copy.folder.path());
  for (const ckpt::FileEntry& file : whole.catalog().files) {
    if (file.path.ends_with(".distcp")) fs::remove(copy.folder.path() / file.path);
  }
  ckpt::Limits listing;
  listing.allow_missing_data = true;
  const auto bare = test::open_checkpoint(copy.folder.path(), listing);
  BOOST_REQUIRE(bare.catalog().tensors.size() == whole.catalog().tensors.size());
  for (size_t f = 0; f < bare.catalog().files.size(); ++f) {
    const ckpt::FileEntry &file = bare.catalog().files[f], &before = whole.catalog().files[f];
    BOOST_TEST(file.is_missing == file.path.ends_with(".distcp"));
    BOOST_TEST(file.count_bytes == before.count_bytes);
  }
  const ckpt::TensorEntry& tensor = bare.catalog().tensors.front();
  BOOST_TEST(tensor.shape == whole.catalog().tensors.front().shape);
  const auto error = test::error_of([&] { bare.locate(tensor.chunks[0].region); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::NotFound));
}

// D4: the entry's own pickle says what it holds; .metadata must agree.
BOOST_AUTO_TEST_CASE(D4_an_entry_of_another_type_than_metadata_says_is_refused) {
  const Copy copy;
  change_metadata(copy.folder.path(), [](ValueTree& tree, Value fields) {
    const Value properties = *first_tensor(fields).at("properties").state();
    std::vector<NodeId> elements;
    for (size_t i = 0; i < properties.size(); ++i) elements.push_back(properties[i].id());
    elements[0] = tree.global("torch", "int8");
    const NodeId state = tree.sequence(ckpt::Kind::Tuple, elements);
    const NodeId changed =
        tree.object(ckpt::Construction::NewObj,
                    first_tensor(fields).at("properties").callable().id(), tree.tuple());
    tree.set_state(changed, state);
    tree.put(first_tensor(fields).id(), "properties", changed);
  });
  const auto checkpoint = test::open_checkpoint(copy.folder.path());
  const ckpt::TensorEntry& tensor = checkpoint.catalog().tensors.front();
  const auto error = test::error_of([&] { checkpoint.locate(tensor.chunks[0].region); });
  BOOST_REQUIRE(error);
  BOOST_TEST(test::contains(error->problem(), ".metadata says int8"));
}

// D7: grids of many chunks cost n log n, in whichever dimension they are cut; without that, the
// second and third would need 10^9 comparisons and more.
const ckpt::Extents kGrids[] = {{40'000, 1}, {1, 40'000}, {200, 200}};
const ckpt::Extents kLongGrids[] = {{1'000'000, 1}, {1, 1'000'000}, {1000, 1000}};

BOOST_DATA_TEST_CASE(D7_many_chunks_of_one_tensor_are_checked, data::xrange(std::size(kGrids)), i) {
  const bool is_long = std::getenv("SHARDWISE_LONG_TESTS") != nullptr;
  const ckpt::Extents& grid = is_long ? kLongGrids[i] : kGrids[i];
  ckpt::DistSpec spec;
  spec.tensors = {{"k", ckpt::DType::UInt8, {2 * grid[0], 2 * grid[1]}}};
  for (uint64_t r = 0; r < grid[0]; ++r) {
    for (uint64_t c = 0; c < grid[1]; ++c) {
      spec.chunks.push_back({0, 0, {{2 * r, 2 * c}, {2, 2}}, {}});
    }
  }
  const auto read = [&] {
    const std::string bytes = ckpt::make_torch_dist_files(spec).back().bytes;
    ckpt::ByteReader reader(test::bytes_of(bytes));
    return ckpt::interpret_dist_metadata(ckpt::pickle::read(reader));
  };
  BOOST_TEST(read().tensors[0].chunks.size() == spec.chunks.size());
  spec.chunks.back().box = spec.chunks[spec.chunks.size() / 2].box;
  spec.chunks.back().box.sizes = {1, 4};  // as many elements, in another place
  const auto error = test::error_of(read);
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_SUITE_END()
