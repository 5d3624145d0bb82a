#include "format/torch_dist/dist_metadata.h"

#include <algorithm>
#include <random>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "codec/pickle.h"
#include "model/check_catalog.h"
#include "support/errors.h"
#include "support/memory_payloads.h"

namespace data = boost::unit_test::data;
using ckpt::DType;
using ckpt::ErrorCode;

namespace {

// A chunk with the tensor that it is of.
struct NamedChunk {
  ckpt::DistTensor tensor;
  ckpt::Box box;
  uint32_t rank = 0;
};
NamedChunk chunk(std::string key, ckpt::Extents shape, ckpt::Box box, uint32_t rank = 0) {
  return {{std::move(key), DType::Float32, std::move(shape)}, std::move(box), rank};
}
void add(ckpt::DistSpec& spec, const NamedChunk& chunk) {
  auto tensor = std::ranges::find(spec.tensors, chunk.tensor.key, &ckpt::DistTensor::key);
  if (tensor == spec.tensors.end()) tensor = spec.tensors.insert(tensor, chunk.tensor);
  const auto index = static_cast<uint32_t>(tensor - spec.tensors.begin());
  spec.chunks.push_back({index, chunk.rank, chunk.box, {}});
}
ckpt::DistSpec spec_of(const std::vector<NamedChunk>& chunks, uint32_t rank_count = 1) {
  ckpt::DistSpec spec;
  spec.rank_count = rank_count;
  for (const NamedChunk& chunk : chunks) add(spec, chunk);
  return spec;
}

// .metadata as make_torch_dist_files() writes it, read back.
ckpt::ValueTree metadata_of(const std::vector<NamedChunk>& chunks, uint32_t rank_count = 1) {
  const std::string bytes = ckpt::make_torch_dist_files(spec_of(chunks, rank_count)).back().bytes;
  ckpt::ByteReader reader(test::bytes_of(bytes));
  return ckpt::pickle::read(reader);
}

ckpt::DistMetadata read(const std::vector<NamedChunk>& chunks, uint32_t rank_count = 1) {
  return ckpt::interpret_dist_metadata(metadata_of(chunks, rank_count));
}

struct BadChunks {
  const char* name;
  std::vector<NamedChunk> chunks;
  friend std::ostream& operator<<(std::ostream& out, const BadChunks& c) { return out << c.name; }
};
const BadChunks kBadChunks[] = {
    {"a hole", {chunk("k", {4}, {{0}, {3}})}},
    {"an overlap", {chunk("k", {4}, {{0}, {3}}), chunk("k", {4}, {{2}, {1}})}},
    {"a chunk outside", {chunk("k", {4}, {{2}, {4}})}},
    {"a chunk of another dimension", {chunk("k", {4}, {{0, 0}, {4, 1}})}},
    {"more elements than the tensor", {chunk("k", {4}, {{0}, {4}}), chunk("k", {4}, {{1}, {3}})}},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(dist_metadata)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  const auto metadata = read({chunk("a", {2, 3}, {{0, 0}, {1, 3}}, 0),
                              chunk("a", {2, 3}, {{1, 0}, {1, 3}}, 1), chunk("b", {}, {{}, {}}, 1)},
                             2);
  BOOST_TEST(metadata.files.size() == 2u);
  BOOST_REQUIRE(metadata.tensors.size() == 2u);
  BOOST_TEST(metadata.tensors[0].key == "a");
  BOOST_TEST(metadata.tensors[0].chunks.size() == 2u);
  BOOST_TEST(metadata.tensors[0].chunks[1].region.file == 1u);
  BOOST_TEST(metadata.tensors[1].shape.empty());
  const auto& second = metadata.tensors[1].chunks[0].region;
  BOOST_TEST(second.bytes.offset_bytes == metadata.tensors[0].chunks[1].region.bytes.end_bytes());
}

BOOST_DATA_TEST_CASE(chunks_that_do_not_tile_their_tensor_are_refused, data::make(kBadChunks),
                     bad) {
  const auto error = test::error_of([&] { read(bad.chunks); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->where().key == "k");
}

// --- chunks of a tensor ---

namespace {

// A tensor cut into boxes of these sizes, which divide its shape.
ckpt::TensorEntry grid(const ckpt::Extents& shape, const ckpt::Extents& sizes) {
  ckpt::TensorEntry tensor;
  tensor.key = "k";
  tensor.shape = shape;
  ckpt::Extents offsets(shape.size(), 0);
  while (true) {
    tensor.chunks.push_back({{offsets, sizes}, {}});
    size_t d = shape.size();
    while (d-- > 0) {
      offsets[d] += sizes[d];
      if (offsets[d] < shape[d]) break;
      offsets[d] = 0;
    }
    if (d > shape.size()) return tensor;
  }
}

bool is_refused(const ckpt::TensorEntry& tensor) {
  const auto error = test::error_of([&] { ckpt::check_chunks(tensor); });
  BOOST_TEST((!error || error->code() == ckpt::ErrorCode::Corrupt));
  return error.has_value();
}

bool have_common_elements(const ckpt::TensorEntry& tensor) {
  for (size_t a = 0; a < tensor.chunks.size(); ++a) {
    for (size_t b = a + 1; b < tensor.chunks.size(); ++b) {
      if (ckpt::intersect(tensor.chunks[a].box, tensor.chunks[b].box)) return true;
    }
  }
  return false;
}

struct Cut {
  ckpt::Extents shape, sizes;
};
const Cut kCuts[] = {{{8}, {2}},
                     {{6, 4}, {2, 2}},
                     {{6, 4}, {6, 1}},
                     {{4, 6, 3}, {1, 2, 3}},
                     {{3, 4, 4, 6}, {1, 1, 2, 6}},
                     {{}, {}}};

}  // namespace

BOOST_AUTO_TEST_CASE(cells_of_a_grid_tile_a_tensor_in_any_order) {
  std::mt19937 random(1);
  for (const Cut& cut : kCuts) {
    ckpt::TensorEntry tensor = grid(cut.shape, cut.sizes);
    for (int i = 0; i < 5; ++i) {
      BOOST_TEST(!is_refused(tensor));
      std::ranges::shuffle(tensor.chunks, random);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_cell_that_is_there_twice_in_place_of_another_is_an_overlap) {
  std::mt19937 random(2);
  for (const Cut& cut : kCuts) {
    ckpt::TensorEntry tensor = grid(cut.shape, cut.sizes);
    if (tensor.chunks.size() == 1) continue;
    std::ranges::shuffle(tensor.chunks, random);
    tensor.chunks.back().box = tensor.chunks.front().box;
    BOOST_TEST(is_refused(tensor));
  }
}

// As many elements as the tensor has: what is said of it must be what comparing all pairs says.
BOOST_AUTO_TEST_CASE(moved_cells_are_refused_where_they_meet_others) {
  std::mt19937 random(3);
  size_t met = 0;
  for (int i = 0; i < 500; ++i) {
    const Cut& cut = kCuts[random() % 5];
    ckpt::TensorEntry tensor = grid(cut.shape, cut.sizes);
    std::ranges::shuffle(tensor.chunks, random);
    ckpt::Box& moved = tensor.chunks[random() % tensor.chunks.size()].box;
    const size_t d = random() % cut.shape.size();
    moved.offsets[d] = random() % (cut.shape[d] - moved.sizes[d] + 1);
    BOOST_TEST(is_refused(tensor) == have_common_elements(tensor));
    met += have_common_elements(tensor);
  }
  BOOST_TEST(met > 100u);
  BOOST_TEST(met < 500u);
}

// storage_data is a Dict of objects; its first place gets another path.
BOOST_DATA_TEST_CASE(a_path_out_of_the_folder_is_refused,
                     data::make({"../x", "/etc/passwd", "a/b", "..", "", "a\\b"}), path) {
  ckpt::ValueTree tree = metadata_of({chunk("k", {4}, {{0}, {4}})});
  const auto place = tree.root().state()->at("storage_data").item(0).second;
  tree.put(place.state()->id(), "relative_path", tree.str(path));
  const auto error = test::error_of([&] { ckpt::interpret_dist_metadata(tree); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_CASE(a_place_that_no_chunk_has_is_refused) {
  ckpt::ValueTree tree = metadata_of({chunk("k", {4}, {{0}, {4}})});
  const auto index = tree.root().state()->at("storage_data").item(0).first;
  tree.put(index.state()->id(), "fqn", tree.str("other"));
  const auto error = test::error_of([&] { ckpt::interpret_dist_metadata(tree); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
}

// Metadata of one chunk that was stored through this.
ckpt::ValueTree transformed_by(const char* descriptor) {
  ckpt::ValueTree tree = metadata_of({chunk("k", {4}, {{0}, {4}})});
  const auto place = tree.root().state()->at("storage_data").item(0).second;
  tree.put(place.state()->id(), "transform_descriptors", tree.list({tree.str(descriptor)}));
  return tree;
}

BOOST_AUTO_TEST_CASE(an_entry_may_be_compressed) {
  const auto metadata = ckpt::interpret_dist_metadata(transformed_by("stream.zstd/1"));
  const ckpt::StorageRegion& region = metadata.tensors.at(0).chunks.at(0).region;
  BOOST_TEST((region.wrapping == ckpt::Wrapping::ZstdTorchSave));
}

BOOST_AUTO_TEST_CASE(another_transformation_is_refused_by_name) {
  const auto error =
      test::error_of([] { ckpt::interpret_dist_metadata(transformed_by("stream.rot13/1")); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Unsupported));
  BOOST_TEST(test::contains(error->problem(), "stream.rot13/1"));
}

// As a general writer of pickles would have written the same values: what is used again, and
// nothing else, is remembered; batches are as long.
std::string written_from_a_tree(const std::string& metadata) {
  ckpt::ByteReader reader(test::bytes_of(metadata));
  return ckpt::pickle::write(ckpt::pickle::read(reader), 4);
}

// Keys that are also names of fields, dimensions up to five, ranks with one entry and with many.
ckpt::DistSpec many_kinds(uint64_t tensors, uint64_t chunks_of_a_tensor) {
  ckpt::DistSpec spec;
  spec.rank_count = 7;
  const auto tree = std::make_shared<ckpt::ValueTree>();
  tree->set_root(tree->none());
  if (tensors > 1) spec.objects = {{"fqn", tree, {}, 1}, {"object", tree, {}, 2}};
  for (uint64_t c = 0; c < chunks_of_a_tensor; ++c) {
    for (uint64_t t = 0; t < tensors; ++t) {
      const size_t dims = 1 + t % 5;
      ckpt::Box box{ckpt::Extents(dims), ckpt::Extents(dims, 2)};
      box.offsets[0] = c * 2;
      ckpt::Extents shape(dims, 2);
      shape[0] = chunks_of_a_tensor * 2;
      const std::string key = t == 1 ? "offset" : "tensor" + std::to_string(t);
      add(spec, chunk(key, shape, box, static_cast<uint32_t>((c + t) % 6)));
    }
  }
  add(spec, chunk("scalar", {}, {{}, {}}, 6));
  return spec;
}

BOOST_AUTO_TEST_CASE(what_is_written_is_what_a_tree_of_the_same_values_is_written_as) {
  for (const auto& [tensors, chunks] : {std::pair(0, 0), {1, 1}, {2, 3}, {9, 700}, {1300, 1}}) {
    const std::string bytes = ckpt::make_torch_dist_files(many_kinds(tensors, chunks)).back().bytes;
    BOOST_TEST((written_from_a_tree(bytes) == bytes), tensors << " of " << chunks << " chunks");
  }
}

BOOST_AUTO_TEST_CASE(metadata_with_the_paths_of_a_state_dict_is_what_a_tree_is_written_as) {
  ckpt::DistSpec spec;
  spec.chunk_index = true;
  ckpt::ValueTree& paths = spec.planner_data.emplace();
  const ckpt::NodeId root = paths.dict();
  paths.set_root(root);
  for (int i = 1500; i-- > 0;) {  // another order than the chunks'
    std::vector<ckpt::NodeId> steps(static_cast<size_t>(i % 6), paths.str("step"));
    if (!steps.empty()) steps.back() = paths.integer(i);
    paths.set_item(root, paths.str("t" + std::to_string(i)),
                   paths.sequence(ckpt::Kind::Tuple, steps));
  }
  for (int i = 0; i < 1500; ++i) {
    add(spec, chunk("t" + std::to_string(i), {4}, {{0}, {4}}));
    spec.tensors.back().requires_grad = i % 2 == 0;
  }
  const std::string bytes = ckpt::make_torch_dist_files(spec).back().bytes;
  BOOST_TEST((written_from_a_tree(bytes) == bytes));
}

BOOST_AUTO_TEST_CASE(the_same_checkpoint_gets_the_same_metadata) {
  const ckpt::DistSpec spec = spec_of({chunk("a", {4}, {{0}, {4}})});
  BOOST_TEST(ckpt::make_torch_dist_files(spec).back().bytes ==
             ckpt::make_torch_dist_files(spec).back().bytes);
}

BOOST_AUTO_TEST_SUITE_END()
