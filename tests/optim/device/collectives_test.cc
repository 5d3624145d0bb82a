#include "step/communication/collectives.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "optim/step/tensors.h"

namespace {

// What two ranks get, with tensors that travel as they are or by way of copies.
std::array<std::vector<at::Tensor>, 2> results(
    const std::optional<std::vector<at::DeviceType>>& devices) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::array<std::vector<at::Tensor>, 2> found;
  const auto run = [&](size_t rank) {
    optim::Collectives collectives(groups[rank].dp_cp, devices);
    const double own = static_cast<double>(rank) + 1;
    at::Tensor sum = at::full({3}, own, at::kDouble), largest = at::full({2}, own, at::kDouble);
    at::Tensor mine = at::full({2}, own, at::kFloat), all = at::zeros({4}, at::kFloat);
    at::Tensor sent = at::full({2}, own, at::kFloat);
    collectives.all_reduce_sum(sum);
    collectives.all_reduce_max(largest);
    collectives.all_gather(all, mine);
    collectives.broadcast(sent, 1);
    found[rank] = {sum, largest, all, sent};
  };
  { const std::jthread first(run, 0), second(run, 1); }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(collectives)

BOOST_AUTO_TEST_CASE(tensors_whose_device_has_no_backend_travel_by_way_of_another) {
  using Devices = std::vector<at::DeviceType>;
  const auto direct = results(Devices{at::kCPU}), detour = results(Devices{});
  for (size_t rank = 0; rank < 2; ++rank) {
    BOOST_REQUIRE(direct[rank].size() == 4U);
    for (size_t i = 0; i < 4; ++i) BOOST_TEST(same_bits(direct[rank][i], detour[rank][i]));
    BOOST_TEST(detour[rank][0][0].item<double>() == 3);
    BOOST_TEST(detour[rank][1][0].item<double>() == 2);
    BOOST_TEST(detour[rank][2][3].item<float>() == 2);
    BOOST_TEST(detour[rank][3][0].item<float>() == 2);
  }
}

BOOST_AUTO_TEST_SUITE_END()
