#include "format/torch_dist/dist_metadata.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>

#include <ckpt/error.h>
#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "codec/pickle.h"
#include "format/torch_dist/dist_items.h"
#include "io/file.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/memory_payloads.h"

namespace data = boost::unit_test::data;
using ckpt::DistMetadata;
using ckpt::NodeId;
using ckpt::ValueTree;

namespace {

ValueTree value_tree_of(const std::string& bytes) {
  ckpt::ByteReader reader(test::bytes_of(bytes));
  return ckpt::pickle::read(reader);
}

std::string pickle_of(const ValueTree& tree, int protocol = 4) {
  return ckpt::pickle::write(tree, protocol);
}

bool same_region(const ckpt::StorageRegion& a, const ckpt::StorageRegion& b) {
  return a.file == b.file && a.bytes == b.bytes && a.wrapping == b.wrapping;
}

void require_equal(const DistMetadata& a, const DistMetadata& b) {
  BOOST_REQUIRE(a.files == b.files);
  BOOST_REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const ckpt::TensorEntry &x = a.tensors[i], &y = b.tensors[i];
    BOOST_REQUIRE(x.key == y.key);
    BOOST_REQUIRE((x.dtype == y.dtype && x.shape == y.shape));
    BOOST_REQUIRE(x.chunks.size() == y.chunks.size());
    for (size_t c = 0; c < x.chunks.size(); ++c) {
      BOOST_REQUIRE((x.chunks[c].box == y.chunks[c].box));
      BOOST_REQUIRE(same_region(x.chunks[c].region, y.chunks[c].region));
    }
  }
  BOOST_REQUIRE(a.objects.size() == b.objects.size());
  for (size_t i = 0; i < a.objects.size(); ++i) {
    BOOST_REQUIRE(a.objects[i].key == b.objects[i].key);
    BOOST_REQUIRE(same_region(*a.objects[i].region, *b.objects[i].region));
  }
  BOOST_REQUIRE(pickle_of(a.rest) == pickle_of(b.rest));
}

// Two tensors in uneven chunks over two files, one without dimensions, and an object.
ckpt::DistSpec small_spec() {
  using ckpt::DType;
  ckpt::DistSpec spec;
  spec.rank_count = 2;
  auto object = std::make_shared<ValueTree>();
  object->set_root(object->list({object->integer(7)}));
  spec.objects.push_back({"common", object, {}, 1});
  spec.tensors = {{"a", DType::BFloat16, {5, 3, 2, 2}}, {"b", DType::Int64, {}}};
  spec.chunks = {{0, 0, {{0, 0, 0, 0}, {3, 3, 2, 2}}, {}},
                 {0, 1, {{3, 0, 0, 0}, {2, 3, 2, 2}}, {}},
                 {1, 1, {{}, {}}, {}}};
  return spec;
}

// Three tensors of eight equal chunks, over two files: objects that are written like the one
// before.
ckpt::DistSpec regular_spec() {
  ckpt::DistSpec spec;
  spec.rank_count = 2;
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    spec.tensors.push_back({std::string(1, "abc"[tensor]), ckpt::DType::Float32, {2400, 300}});
    for (uint32_t row = 0; row < 8; ++row) {
      spec.chunks.push_back({tensor, row % 2, {{row * 300, 0}, {300, 300}}, {}});
    }
  }
  return spec;
}

std::string regular_metadata() { return ckpt::make_torch_dist_files(regular_spec()).back().bytes; }

// A tensor of so many dimensions, in eight chunks along the first.
std::string metadata_of_dims(size_t dims) {
  ckpt::DistSpec spec;
  ckpt::Extents shape(dims, 2), sizes(dims, 2);
  shape[0] = 2400;
  sizes[0] = 300;
  spec.tensors.push_back({"a", ckpt::DType::Float32, shape});
  for (uint64_t row = 0; row < 8; ++row) {
    ckpt::Extents offsets(dims, 0);
    offsets[0] = row * 300;
    spec.chunks.push_back({0, 0, {offsets, sizes}, {}});
  }
  return ckpt::make_torch_dist_files(spec).back().bytes;
}

// As Python's pickler wrote it, which memoizes all that it makes, not only what is recalled.
std::string metadata_of_pytorch() {
  return test::read_file(test::golden("gpt1l_tiny_torch_dist_dp2/iter_0000003/.metadata"));
}

// A tensor of so many rows that its file is larger than the window that is read at once.
std::string large_metadata(bool with_overlap) {
  ckpt::DistSpec spec;
  const uint64_t count = 20'000;
  spec.tensors = {{"a", ckpt::DType::UInt8, {count, 2}}};
  for (uint64_t row = 0; row < count; ++row) {
    spec.chunks.push_back({0, 0, {{row, 0}, {1, 2}}, {}});
  }
  ValueTree tree = value_tree_of(ckpt::make_torch_dist_files(spec).back().bytes);
  if (with_overlap) {
    const ckpt::Value entry = tree.root().state()->at("state_dict_metadata").at("a");
    const ckpt::Value chunks = entry.state()->at("chunks");
    tree.put(chunks[count - 1].state()->id(), "offsets", chunks[0].state()->at("offsets").id());
  }
  return pickle_of(tree);
}

std::string small_metadata() { return ckpt::make_torch_dist_files(small_spec()).back().bytes; }

using Change = std::function<void(ValueTree&, NodeId fields)>;

// A change after which the file is as the general reader may take it, but no longer as usual.
struct Uncommon {
  const char* name;
  Change change;
  friend std::ostream& operator<<(std::ostream& out, const Uncommon& u) { return out << u.name; }
};

NodeId first_entry_state(ValueTree& tree, NodeId fields, const char* dict, bool of_key) {
  const auto [key, value] = tree.value(fields).at(dict).item(0);
  return (of_key ? key : value).state()->id();
}

const Uncommon kUncommon[] = {
    {"an unknown field of a place",
     [](ValueTree& t, NodeId f) {
       t.put(first_entry_state(t, f, "storage_data", false), "checksum", t.integer(1));
     }},
    {"a transformed entry",
     [](ValueTree& t, NodeId f) {
       t.put(first_entry_state(t, f, "storage_data", false), "transform_descriptors",
             t.list({t.str("zstd")}));
     }},
    {"a negative length",
     [](ValueTree& t, NodeId f) {
       t.put(first_entry_state(t, f, "storage_data", false), "length", t.integer(-1));
     }},
    {"a path out of the folder",
     [](ValueTree& t, NodeId f) {
       t.put(first_entry_state(t, f, "storage_data", false), "relative_path", t.str("../x"));
     }},
    {"a place of nothing",
     [](ValueTree& t, NodeId f) {
       t.put(first_entry_state(t, f, "storage_data", true), "fqn", t.str("nothing"));
     }},
    {"no storage_data", [](ValueTree& t, NodeId f) { t.erase(f, "storage_data"); }},
    {"storage_data twice",
     [](ValueTree& t, NodeId f) { t.set_item(f, t.str("storage_data"), t.none()); }},
    {"storage_data without places",
     [](ValueTree& t, NodeId f) { t.put(f, "storage_data", t.dict()); }},
    {"an entry that is no metadata",
     [](ValueTree& t, NodeId f) {
       t.set_item(t.value(f).at("state_dict_metadata").id(), t.str("x"), t.integer(1));
     }},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(dist_stream)

BOOST_DATA_TEST_CASE(reads_what_the_general_reader_reads, data::make({4, 5}), protocol) {
  const ValueTree tree = value_tree_of(small_metadata());
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(pickle_of(tree, protocol)), {});
  BOOST_REQUIRE(streamed.has_value());
  require_equal(*streamed, ckpt::interpret_dist_metadata(tree));
}

BOOST_DATA_TEST_CASE(reads_chunks_of_any_number_of_dimensions, data::xrange(1, 9), dims) {
  const std::string bytes = metadata_of_dims(static_cast<size_t>(dims));
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(bytes), {});
  BOOST_REQUIRE(streamed.has_value());
  require_equal(*streamed, ckpt::interpret_dist_metadata(value_tree_of(bytes)));
}

// LONG1 of more bytes than a number needs, which no pickler writes.
BOOST_AUTO_TEST_CASE(long_encodings_of_small_numbers_are_read_as_the_general_reader_reads_them) {
  std::string bytes = regular_metadata();
  const std::string short_form = "M\x2c\x01";  // BININT2 300
  const std::string long_form = "\x8a\xff\x2c\x01" + std::string(253, '\0');
  for (size_t at = 0; (at = bytes.find(short_form, at)) != bytes.npos; at += long_form.size()) {
    bytes.replace(at, short_form.size(), long_form);
  }
  BOOST_REQUIRE(bytes.size() > 24 * long_form.size());
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(bytes), {});
  BOOST_REQUIRE(streamed.has_value());
  require_equal(*streamed, ckpt::interpret_dist_metadata(value_tree_of(bytes)));
}

// PyTorch writes protocol 4, and has never written a .metadata in an older one.
BOOST_DATA_TEST_CASE(leaves_older_protocols_to_the_general_reader, data::make({2, 3}), protocol) {
  const std::string bytes = pickle_of(value_tree_of(small_metadata()), protocol);
  BOOST_TEST(!ckpt::stream_dist_metadata(test::MemoryFile(bytes), {}).has_value());
}

BOOST_AUTO_TEST_CASE(reads_the_golden_metadata_of_pytorch) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test::golden(""))) {
    if (entry.path().filename() != ".metadata") continue;
    const ckpt::File file = ckpt::File::open(entry.path(), ".metadata");
    std::string bytes(file.size_bytes(), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(bytes)));
    const auto streamed = ckpt::stream_dist_metadata(file, {});
    // Megatron-Core 0.12 keeps each rank's plan beside the entries: left to the general reader.
    const bool has_plans = bytes.find("all_local_plans") != std::string::npos;
    BOOST_REQUIRE(streamed.has_value() == !has_plans);
    if (!streamed) continue;
    require_equal(*streamed, ckpt::interpret_dist_metadata(value_tree_of(bytes)));
    ++count;
  }
  BOOST_TEST(count > 0u);
}

BOOST_DATA_TEST_CASE(leaves_what_is_not_as_usual_to_the_general_reader, data::make(kUncommon), u) {
  ValueTree tree = value_tree_of(small_metadata());
  u.change(tree, tree.root().state()->id());
  BOOST_TEST(!ckpt::stream_dist_metadata(test::MemoryFile(pickle_of(tree)), {}).has_value());
}

BOOST_AUTO_TEST_CASE(accepts_no_beginning_and_no_continuation_of_a_pickle) {
  const std::string bytes = small_metadata();
  BOOST_TEST(!ckpt::stream_dist_metadata(test::MemoryFile(bytes + "."), {}).has_value());
  for (size_t count = 0; count < bytes.size(); ++count) {
    BOOST_REQUIRE(
        !ckpt::stream_dist_metadata(test::MemoryFile(bytes.substr(0, count)), {}).has_value());
  }
}

// Whatever a byte is changed to (in a large file every seventh), the two readers agree or the
// streaming one stands aside.
BOOST_DATA_TEST_CASE(accepts_nothing_that_the_general_reader_refuses,
                     data::make({small_metadata(), regular_metadata(), metadata_of_dims(4),
                                 metadata_of_pytorch()}),
                     bytes) {
  size_t accepted = 0;
  const size_t step = bytes.size() < 5000 ? 1 : 7;
  for (size_t at = 0; at < bytes.size(); at += step) {
    for (const int change : {1, 2, 16, 128, 255}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      std::optional<DistMetadata> streamed, general;
      const auto refused = test::error_of(
          [&] { streamed = ckpt::stream_dist_metadata(test::MemoryFile(damaged), {}); });
      if (!streamed && !refused) continue;
      const auto error =
          test::error_of([&] { general = ckpt::interpret_dist_metadata(value_tree_of(damaged)); });
      BOOST_REQUIRE(refused.has_value() == error.has_value());
      if (refused) continue;
      ++accepted;
      require_equal(*streamed, *general);
    }
  }
  BOOST_TEST(accepted > 0u);  // a letter of a name, a number of another place
}

BOOST_AUTO_TEST_CASE(a_large_file_is_read_in_windows_and_its_overlaps_are_found) {
  const std::string bytes = large_metadata(false);
  BOOST_TEST(bytes.size() > size_t{1} << 20);
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(bytes), {});
  BOOST_REQUIRE(streamed.has_value());
  require_equal(*streamed, ckpt::interpret_dist_metadata(value_tree_of(bytes)));
  const std::string cut = bytes.substr(0, bytes.size() - 1);
  BOOST_TEST(!ckpt::stream_dist_metadata(test::MemoryFile(cut), {}).has_value());
  const test::MemoryFile overlapping(large_metadata(true));
  const auto error = test::error_of([&] { ckpt::stream_dist_metadata(overlapping, {}); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST(error->where().key == "a");
}

// Behind the first 16,384 places, which another thread takes while these are read.
BOOST_AUTO_TEST_CASE(a_late_place_of_nothing_is_left_to_the_general_reader) {
  for (const size_t late : {size_t{100}, size_t{16'383}, size_t{16'384}, size_t{19'999}}) {
    ValueTree tree = value_tree_of(large_metadata(false));
    const ckpt::Value places = tree.root().state()->at("storage_data");
    tree.put(places.item(late).first.state()->id(), "fqn", tree.str("nothing"));
    BOOST_TEST(!ckpt::stream_dist_metadata(test::MemoryFile(pickle_of(tree)), {}).has_value());
  }
}

BOOST_AUTO_TEST_CASE(limits_are_left_to_the_general_reader) {
  const test::MemoryFile file(small_metadata());
  BOOST_TEST(!ckpt::stream_dist_metadata(file, {.pickle_nodes_max = 20}).has_value());
  BOOST_TEST(!ckpt::stream_dist_metadata(file, {.pickle_bytes_max = 20}).has_value());
}

// Chunks in another order than their places, and files larger than the window that is read at once.
BOOST_AUTO_TEST_CASE(places_may_come_in_any_order) {
  ckpt::DistSpec spec;
  const uint64_t count = 20'000;
  spec.tensors = {{"a", ckpt::DType::UInt8, {count, 2}}};
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t row = i * 7919 % count;
    spec.chunks.push_back({0, 0, {{row, 0}, {1, 2}}, {}});
  }
  ValueTree tree = value_tree_of(ckpt::make_torch_dist_files(spec).back().bytes);
  const ckpt::Value places = tree.root().state()->at("storage_data");
  const NodeId reversed = tree.dict();
  for (size_t i = places.item_count(); i-- > 0;) {
    tree.set_item(reversed, places.item(i).first.id(), places.item(i).second.id());
  }
  tree.put(tree.root().state()->id(), "storage_data", reversed);
  const std::string bytes = pickle_of(tree);
  BOOST_TEST(bytes.size() > size_t{1} << 20);
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(bytes), {});
  BOOST_REQUIRE(streamed.has_value());
  require_equal(*streamed, ckpt::interpret_dist_metadata(tree));
  BOOST_TEST(streamed->region_ends.empty());
}

// Regions of files of more than 2 GiB: from 2^31 on Python writes LONG1, in as few bytes as it
// takes.
BOOST_AUTO_TEST_CASE(large_offsets_are_read_as_the_general_reader_reads_them) {
  ValueTree tree = value_tree_of(regular_metadata());
  const ckpt::Value places = tree.root().state()->at("storage_data");
  BOOST_REQUIRE(places.item_count() == 24u);
  for (size_t i = 0; i < places.item_count(); ++i) {
    const NodeId state = places.item(i).second.state()->id();
    tree.put(state, "offset", tree.integer((int64_t{1} << (i + 30)) - static_cast<int64_t>(i % 2)));
  }
  const std::string bytes = pickle_of(tree);
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(bytes), {});
  BOOST_REQUIRE(streamed.has_value());
  require_equal(*streamed, ckpt::interpret_dist_metadata(tree));
}

BOOST_AUTO_TEST_CASE(ends_of_files_are_known_where_regions_follow_each_other) {
  const auto streamed = ckpt::stream_dist_metadata(test::MemoryFile(small_metadata()), {});
  BOOST_REQUIRE(streamed.has_value());
  std::vector<uint64_t> ends(streamed->files.size());
  const auto extend = [&](const ckpt::StorageRegion& region) {
    ends[region.file] = std::max(ends[region.file], region.bytes.end_bytes());
  };
  for (const ckpt::TensorEntry& tensor : streamed->tensors) {
    for (const ckpt::Chunk& chunk : tensor.chunks) extend(chunk.region);
  }
  for (const ckpt::ObjectEntry& object : streamed->objects) extend(*object.region);
  BOOST_TEST(!ends.empty());
  BOOST_TEST(streamed->region_ends == ends, boost::test_tools::per_element());
}

// What a guess by the row finds is what the search finds, where rows come again, in part, in
// another order or with values between them.
BOOST_AUTO_TEST_CASE(values_of_rows_have_the_numbers_that_a_search_gives_them) {
  ckpt::InternedExtents searched, guessed;
  for (const uint64_t step : {1, 1, 3, 7, 1, 2}) {
    uint32_t before = 0;
    for (uint64_t i = 0; i < 5000; ++i) {
      const ckpt::Extents value = {i * step % 4001, i % 3};
      const std::span<const uint64_t> numbers(value.data(), value.size());
      const auto id = guessed.intern_behind(before, numbers);
      BOOST_REQUIRE(id == searched.intern(numbers));
      BOOST_REQUIRE(guessed[*id] == value);
      before = *id;
    }
  }
  BOOST_TEST(guessed.size() == searched.size());
}

BOOST_AUTO_TEST_SUITE_END()
