#include <ckpt/hash.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <mutex>

#include "codec/hash_functions.h"
#include "support/errors.h"
#include "support/random_tensors.h"

using ckpt::ErrorCode;
using ckpt::ExecuteOptions;
using ckpt::Hashes;
using ckpt::Inventory;
using ckpt::TensorEntry;
using test::KnownTensor;
using test::MemoryPayloads;

namespace {

std::string sha256_of(const std::string& content) {
  ckpt::Sha256Stream stream;
  stream.update(content);
  return hex(stream.finish());
}

struct Sample {
  MemoryPayloads payloads;
  Inventory inventory;
  std::vector<std::string> expected;  // by index of inventory.tensors
};

void fill_with_random_tensors(Sample& sample, size_t count) {
  test::Random random(11);
  for (size_t i = 0; i < count; ++i) {
    KnownTensor tensor = test::random_tensor(random, sample.payloads);
    tensor.entry.key = "w" + std::to_string(1000 + i);  // sorted as they are
    sample.expected.push_back(sha256_of(tensor.content));
    sample.inventory.tensors.push_back(tensor.entry);
  }
}

TensorEntry entry_of(const std::string& key, const ckpt::Extents& shape,
                     const ckpt::StorageRegion& region) {
  return {"", key, ckpt::DType::UInt8, shape, {{ckpt::whole(shape), region}}};
}

std::shared_ptr<const ckpt::Document> document_of(int64_t number) {
  auto document = std::make_shared<ckpt::Document>();
  document->tree.set_root(document->tree.list({document->tree.integer(number)}));
  return document;
}

void add_object(Inventory& inventory, const std::string& key, int64_t number) {
  auto document = document_of(number);
  const ckpt::NodeId root = document->tree.root().id();
  inventory.objects.push_back({"", key, std::move(document), root, true});
}

std::string digest_of(const Inventory& inventory, const MemoryPayloads& payloads) {
  return hex(hash(inventory, payloads).digest);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hash_test)

BOOST_AUTO_TEST_CASE(sha256_of_the_empty_text_and_of_abc) {  // FIPS 180-4 examples
  BOOST_TEST(sha256_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  BOOST_TEST(sha256_of("abc") ==
             "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

BOOST_AUTO_TEST_CASE(a_hash_is_of_the_row_major_bytes_whatever_the_chunks) {
  Sample sample;
  fill_with_random_tensors(sample, 300);
  const Hashes hashes = hash(sample.inventory, sample.payloads);
  BOOST_REQUIRE(hashes.tensors.size() == sample.expected.size());
  for (size_t i = 0; i < sample.expected.size(); ++i) {
    BOOST_TEST(hex(hashes.tensors[i].sha256) == sample.expected[i]);
  }
}

BOOST_AUTO_TEST_CASE(threads_and_memory_change_nothing) {
  Sample sample;
  fill_with_random_tensors(sample, 100);
  const std::string expected = digest_of(sample.inventory, sample.payloads);
  for (const unsigned threads : {1u, 2u, 7u}) {
    ExecuteOptions options;
    options.threads = threads;
    options.memory_bytes_max = 1;
    BOOST_TEST(hex(hash(sample.inventory, sample.payloads, options).digest) == expected);
  }
}

BOOST_AUTO_TEST_CASE(a_large_tensor_passes_through_a_small_slab) {
  test::Random random(3);
  MemoryPayloads payloads;
  const std::string content = test::random_bytes(random, 1'000'003);
  Inventory inventory{{entry_of("w", {content.size()}, payloads.add_storage(content))}, {}};
  ExecuteOptions options;
  options.memory_bytes_max = 64 << 10;
  options.threads = 4;
  BOOST_TEST(hex(hash(inventory, payloads, options).tensors[0].sha256) == sha256_of(content));
  BOOST_TEST(payloads.longest_read_bytes() <= options.memory_bytes_max / 4);
}

BOOST_AUTO_TEST_CASE(tensors_without_elements_and_without_dimensions_have_hashes) {
  MemoryPayloads payloads;
  const auto region = payloads.add_storage("x");
  Inventory inventory{{entry_of("empty", {0, 3}, region), entry_of("scalar", {}, region)}, {}};
  const Hashes hashes = hash(inventory, payloads);
  BOOST_TEST(hex(hashes.tensors[0].sha256) == sha256_of(""));
  BOOST_TEST(hex(hashes.tensors[1].sha256) == sha256_of("x"));
}

BOOST_AUTO_TEST_CASE(a_payload_that_two_names_share_is_read_once) {
  MemoryPayloads payloads;
  const auto region = payloads.add_storage("shared");
  Inventory inventory{{entry_of("tied", {6}, region), entry_of("weight", {6}, region)}, {}};
  const Hashes hashes = hash(inventory, payloads);
  BOOST_TEST(payloads.reads() == 1u);
  BOOST_TEST((hashes.tensors[0].sha256 == hashes.tensors[1].sha256));
}

BOOST_AUTO_TEST_CASE(entries_are_sorted_by_file_then_key) {
  MemoryPayloads payloads;
  const auto region = payloads.add_storage("x");
  Inventory inventory{
      {entry_of("b", {1}, region), entry_of("a", {1}, region), entry_of("0", {1}, region)}, {}};
  inventory.tensors[2].file = "z.pt";
  const Hashes hashes = hash(inventory, payloads);
  BOOST_TEST(hashes.tensors[0].key == "a");
  BOOST_TEST(hashes.tensors[1].key == "b");
  BOOST_TEST(hashes.tensors[2].key == "0");
}

BOOST_AUTO_TEST_CASE(the_digest_does_not_depend_on_the_order_of_storage) {
  Sample sample;
  fill_with_random_tensors(sample, 20);
  add_object(sample.inventory, "a", 1);
  add_object(sample.inventory, "b", 2);
  const std::string expected = digest_of(sample.inventory, sample.payloads);
  std::reverse(sample.inventory.tensors.begin(), sample.inventory.tensors.end());
  std::reverse(sample.inventory.objects.begin(), sample.inventory.objects.end());
  BOOST_TEST(digest_of(sample.inventory, sample.payloads) == expected);
}

BOOST_AUTO_TEST_CASE(the_digest_covers_names_types_shapes_bytes_and_objects) {
  MemoryPayloads payloads;
  Inventory inventory{{entry_of("w", {2, 3}, payloads.add_storage("abcdef"))}, {}};
  add_object(inventory, "o", 1);
  const std::string original = digest_of(inventory, payloads);
  const auto changed = [&](auto change) {
    Inventory other = inventory;
    change(other);
    return digest_of(other, payloads) != original;
  };
  BOOST_TEST(changed([](Inventory& i) { i.tensors[0].key = "v"; }));
  BOOST_TEST(changed([](Inventory& i) { i.tensors[0].file = "f"; }));
  BOOST_TEST(changed([](Inventory& i) { i.tensors[0].dtype = ckpt::DType::Int8; }));
  BOOST_TEST(changed([&](Inventory& i) {
    i.tensors[0] = entry_of("w", {3, 2}, i.tensors[0].chunks[0].region);
  }));
  BOOST_TEST(changed([&](Inventory& i) {
    i.tensors[0] = entry_of("w", {2, 3}, payloads.add_storage("abcdeg"));
  }));
  BOOST_TEST(changed([](Inventory& i) { i.tensors.clear(); }));
  BOOST_TEST(changed([](Inventory& i) { i.objects[0].key = "p"; }));
  BOOST_TEST(changed([](Inventory& i) { i.objects[0].document = document_of(2); }));
  BOOST_TEST(!changed([](Inventory& i) { i.objects[0].document = document_of(1); }));
}

BOOST_AUTO_TEST_CASE(tensors_inside_an_object_are_listed_by_pointer_and_change_its_hash) {
  MemoryPayloads payloads;
  const auto hash_with = [&](const std::string& content) {
    auto document = std::make_shared<ckpt::Document>();
    ckpt::ValueTree& tree = document->tree;
    const ckpt::NodeId state = tree.dict();
    tree.put(state, "rng", ckpt::add_tensor(tree, ckpt::DType::UInt8, {3}, "0"));
    tree.set_root(tree.list({state}));
    document->storages = {{"0", payloads.add_storage(content)}};
    const ckpt::NodeId root = tree.root().id();
    Inventory inventory{{}, {{"", "rng_state", document, root, true}}};
    return hash(inventory, payloads).objects.at(0);
  };
  const ckpt::ObjectHash object = hash_with("abc");
  BOOST_REQUIRE(object.tensors.size() == 1u);
  BOOST_TEST(object.tensors[0].key == "/0/rng");
  BOOST_TEST(hex(object.tensors[0].sha256) == sha256_of("abc"));
  BOOST_TEST((object.sha256 != hash_with("abd").sha256));
}

BOOST_AUTO_TEST_CASE(a_hole_between_chunks_is_corrupt_and_names_the_key) {
  MemoryPayloads payloads;
  TensorEntry tensor = entry_of("w", {4}, payloads.add_storage("abcd"));
  tensor.chunks[0].box.sizes = {2};
  const auto error = test::error_of([&] { hash({{tensor}, {}}, payloads); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->where().key == "w");
}

BOOST_AUTO_TEST_CASE(a_stop_ends_the_work) {
  Sample sample;
  fill_with_random_tensors(sample, 50);
  std::stop_source source;
  source.request_stop();
  ExecuteOptions options;
  options.stop = source.get_token();
  const auto error = test::error_of([&] { hash(sample.inventory, sample.payloads, options); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST(error->problem() == "cancelled");
}

BOOST_AUTO_TEST_CASE(progress_ends_at_the_total) {
  Sample sample;
  fill_with_random_tensors(sample, 50);
  ckpt::Progress last;
  ExecuteOptions options;
  options.threads = 3;
  options.on_progress = [&](const ckpt::Progress& progress) { last = progress; };
  hash(sample.inventory, sample.payloads, options);
  BOOST_TEST(last.total_bytes > 0u);
  BOOST_TEST(last.done_bytes == last.total_bytes);
}

BOOST_AUTO_TEST_SUITE_END()
