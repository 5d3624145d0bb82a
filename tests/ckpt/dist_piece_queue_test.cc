#include "format/torch_dist/dist_piece_queue.h"

#include <boost/test/unit_test.hpp>
#include <thread>

using ckpt::DistPieceQueue;
using ckpt::DistPieces;

namespace {

constexpr uint32_t kPieces = 100;

void push_numbered(DistPieceQueue& queue) {
  for (uint32_t number = 0; number < kPieces; ++number) {
    DistPieces pieces;
    pieces.places.push_back({number, 0, nullptr, {}});
    queue.push(pieces);
  }
  queue.close();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dist_piece_queue)

BOOST_AUTO_TEST_CASE(all_pieces_come_in_their_order_however_few_may_wait) {
  for (const size_t waiting_max : {size_t{1}, size_t{2}, size_t{1000}}) {
    DistPieceQueue queue(waiting_max);
    const std::jthread reader([&] { push_numbered(queue); });
    uint32_t next = 0;
    while (auto pieces = queue.pop()) {
      BOOST_TEST(pieces->places.at(0).key == next++);
      queue.give_back(std::move(*pieces));
    }
    BOOST_TEST(next == kPieces);
  }
}

BOOST_AUTO_TEST_CASE(who_pushes_is_not_left_waiting_by_who_gives_up) {
  DistPieceQueue queue(1);
  const std::jthread reader([&] { push_numbered(queue); });  // ends, or this test does not
  BOOST_TEST(queue.pop()->places.at(0).key == 0);
  queue.abandon();
}

BOOST_AUTO_TEST_SUITE_END()
