// Which ranks write the models of a `torch` folder, before and since Megatron-Core 0.19.
#include "grid/rank_files.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace data = boost::unit_test::data;

namespace {

struct Row {
  uint32_t tp, cp, dp, ep, etp;
  const char* loss_before;  // "": none
  const char* loss_since;
  std::vector<uint32_t> writers;  // one of each folder, since 0.19
  friend std::ostream& operator<<(std::ostream& out, const Row& row) {
    return out << "tp" << row.tp << " cp" << row.cp << " dp" << row.dp << " ep" << row.ep << " etp"
               << row.etp;
  }
};

// Megatron's conditions: edp == 0; since its change 4678: dp == 0 or edp == 0.
const Row kRows[] = {
    {1, 1, 2, 1, 1, "", "", {0}},
    {2, 1, 2, 1, 2, "", "", {0, 1}},
    {1, 2, 2, 1, 1, "", "", {0}},
    {2, 1, 2, 1, 1, "no rank writes mp_rank_01/model_optim_rng.pt", "", {0, 1}},
    {2, 1, 2, 2, 1, "", "", {0, 1}},
    {4, 1, 2, 2, 1, "no rank writes mp_rank_02_000/model_optim_rng.pt", "", {0, 1, 2, 3}},
    {4,
     1,
     3,
     3,
     1,
     "no rank writes mp_rank_03_000/model_optim_rng.pt",
     "no rank writes mp_rank_00_001/model_optim_rng.pt",
     {0, 1, 2, 3}},
    {1,
     1,
     2,
     1,
     2,
     "ranks 0 and 1 both write mp_rank_00/model_optim_rng.pt",
     "ranks 0 and 1 both write mp_rank_00/model_optim_rng.pt",
     {0, 1}},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(rank_files)

BOOST_DATA_TEST_CASE(each_folder_has_a_writer_or_the_loss_is_named, data::make(kRows), row) {
  optim::RunGrid grid;
  grid.sizes.tensor_parallel = row.tp;
  grid.sizes.context_parallel = row.cp;
  grid.sizes.data_parallel = row.dp;
  grid.sizes.expert_parallel = row.ep;
  grid.sizes.expert_tensor_parallel = row.etp;
  const auto ranks = optim::ranks_of(grid);
  BOOST_TEST(optim::loss_in_rank_files(ranks, {.is_before_core_019 = true}) == row.loss_before);
  BOOST_TEST(optim::loss_in_rank_files(ranks, {}) == row.loss_since);
  std::vector<uint32_t> writers;
  for (const optim::WorldRank& rank : ranks) {
    if (rank.writes_model) writers.push_back(rank.rank);
    if (rank.writes_model) BOOST_TEST(optim::may_write_model(rank.at));
  }
  BOOST_TEST(writers == row.writers, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
