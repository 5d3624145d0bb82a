// Nothing is gained or lost on the way from a state dict to a target.
#include "targets/conservation.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>

#include <stdexcept>

#include <ckpt/archive_builder.h>

#include "targets/plain_target.h"

using ckpt::Format;
using ckpt::Holdings;
using ckpt::PlainEntry;
using ckpt::PlainState;

namespace {

PlainEntry tensor_entry(const std::string& key, const ckpt::Extents& shape) {
  ckpt::TensorEntry tensor;
  tensor.key = key;
  tensor.shape = shape;
  ckpt::Chunk chunk{ckpt::whole(shape), {}};
  chunk.region.bytes = {1000u * static_cast<uint8_t>(key[0]), 4 * ckpt::element_count(shape)};
  tensor.chunks.push_back(std::move(chunk));
  return {key,   {{key}}, std::make_shared<const ckpt::TensorEntry>(std::move(tensor)),
          false, nullptr, 0};
}

PlainEntry object_entry(const std::string& key) {
  auto document = std::make_shared<ckpt::Document>();
  document->tree.set_root(document->tree.dict());
  return {key, {{key}}, nullptr, false, document, document->tree.root().id()};
}

PlainState two_tensors_and_an_object() {
  PlainState state;
  state.entries = {tensor_entry("a", {2, 3}), tensor_entry("b", {}), object_entry("o")};
  return state;
}

const ckpt::TargetRow& row_of(Format format) {
  return *std::ranges::find(ckpt::target_rows(), format, &ckpt::TargetRow::format);
}

ckpt::Target made(Format format, PlainState state) {
  return row_of(format).make(std::move(state), {format, false, {}});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conservation)

BOOST_AUTO_TEST_CASE(a_state_holds_its_tensors_elements_and_objects) {
  BOOST_CHECK((ckpt::holdings_of(two_tensors_and_an_object()) == Holdings{2, 7, 1}));
}

BOOST_AUTO_TEST_CASE(targets_hold_what_the_state_held_but_for_what_they_list) {
  BOOST_CHECK((ckpt::holdings_of(made(Format::TorchDist, two_tensors_and_an_object())) ==
               Holdings{2, 7, 1}));
  BOOST_CHECK(
      (ckpt::holdings_of(made(Format::Torch, two_tensors_and_an_object())) == Holdings{2, 7, 1}));
  BOOST_CHECK((ckpt::holdings_of(made(Format::Safetensors, two_tensors_and_an_object())) ==
               Holdings{2, 7, 0}));
  BOOST_CHECK((ckpt::listed_holdings(two_tensors_and_an_object(),
                                     row_of(Format::Safetensors).is_listed) == Holdings{0, 0, 1}));
}

BOOST_AUTO_TEST_CASE(an_empty_mapping_is_listed_where_the_target_is_a_folder_of_pytorch) {
  PlainState state = two_tensors_and_an_object();
  state.entries.back().is_empty_mapping = true;
  BOOST_CHECK(
      (ckpt::listed_holdings(state, row_of(Format::TorchDist).is_listed) == Holdings{0, 0, 1}));
  BOOST_CHECK((ckpt::listed_holdings(state, row_of(Format::Torch).is_listed) == Holdings{}));
  const ckpt::Target target = made(Format::TorchDist, std::move(state));
  BOOST_CHECK((ckpt::holdings_of(target) == Holdings{2, 7, 0}));
  BOOST_TEST(target.not_carried.size() == 1U);
  BOOST_TEST(target.not_carried[0].what == "/o");
  BOOST_TEST(target.not_carried[0].missing_key.value() == "o");
}

BOOST_AUTO_TEST_CASE(a_difference_is_a_fault_of_ours) {
  ckpt::check_conserved({2, 7, 1}, {2, 7, 0}, {0, 0, 1});
  BOOST_CHECK_THROW(ckpt::check_conserved({2, 7, 1}, {1, 6, 1}, {}), std::logic_error);
  BOOST_CHECK_THROW(ckpt::check_conserved({2, 7, 1}, {2, 8, 1}, {}), std::logic_error);
  BOOST_CHECK_THROW(ckpt::check_conserved({2, 7, 1}, {2, 7, 1}, {0, 0, 1}), std::logic_error);
}

BOOST_AUTO_TEST_SUITE_END()
