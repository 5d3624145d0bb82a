#include "work/workers.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <random>

#include <ckpt/error.h>

BOOST_AUTO_TEST_SUITE(deal_by_bytes)

BOOST_AUTO_TEST_CASE(the_largest_pieces_go_to_who_has_the_least) {
  using Sizes = std::vector<uint64_t>;
  using Owners = std::vector<uint32_t>;
  BOOST_TEST((ckpt::deal_by_bytes(Sizes{5, 5, 5, 5}, 2) == Owners{0, 1, 0, 1}));
  BOOST_TEST((ckpt::deal_by_bytes(Sizes{1, 2, 3, 6}, 2) == Owners{1, 1, 1, 0}));
  BOOST_TEST((ckpt::deal_by_bytes(Sizes{7}, 3) == Owners{0}));
  BOOST_TEST(ckpt::deal_by_bytes(Sizes{}, 3).empty());
}

BOOST_AUTO_TEST_CASE(no_share_is_larger_than_the_mean_and_one_piece) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> sizes(1 + random() % 50);
    for (uint64_t& size : sizes) size = random() % 1000;
    const auto processes = static_cast<uint32_t>(1 + random() % 9);
    const auto owner = ckpt::deal_by_bytes(sizes, processes);
    std::vector<uint64_t> share(processes);
    for (size_t p = 0; p < sizes.size(); ++p) share.at(owner[p]) += sizes[p];
    const uint64_t sum = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
    BOOST_TEST(std::ranges::max(share) <= sum / processes + std::ranges::max(sizes));
  }
}

BOOST_AUTO_TEST_CASE(a_share_of_no_process_is_refused) {
  BOOST_CHECK_NO_THROW(ckpt::check_share({0, 1}));
  BOOST_CHECK_NO_THROW(ckpt::check_share({7, 8}));
  for (const ckpt::Share share :
       {ckpt::Share{0, 0}, ckpt::Share{8, 8}, ckpt::Share{0, 1U << 21U}}) {
    BOOST_CHECK_THROW(ckpt::check_share(share), ckpt::Error);
  }
}

BOOST_AUTO_TEST_SUITE_END()
