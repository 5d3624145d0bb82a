#include <training/opened_training.h>
#include <training/report_page.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "report/page/rows.h"

using optim::HistogramBars;

namespace {

HistogramBars bars(std::vector<ckpt::HistogramBin> histogram, uint64_t zero_count = 0) {
  ckpt::Statistics statistics;
  statistics.histogram = std::move(histogram);
  statistics.zero_count = zero_count;
  return optim::bars_of(statistics);
}

optim::OpenedTraining open(const char* name) {
  return optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) / name);
}

optim::ReportPage report_of(const optim::OpenedTraining& checkpoint,
                            std::optional<uint64_t> sample_bytes = {}) {
  optim::ReportOptions options;
  options.sample_bytes = sample_bytes;
  return make_report(checkpoint, options);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(report_page)

BOOST_AUTO_TEST_CASE(bars_go_from_large_to_small) {
  const HistogramBars found = bars({{-1, true, 50}, {-3, true, 10}, {-2, false, 100}});
  BOOST_TEST(found.top == -1);
  BOOST_TEST(found.step == 1);
  BOOST_TEST(found.negative == (std::vector<uint8_t>{18, 0, 4}), boost::test_tools::per_element());
  BOOST_TEST(found.positive == (std::vector<uint8_t>{0, 35, 0}), boost::test_tools::per_element());
  BOOST_TEST(found.middle == 0);
}

BOOST_AUTO_TEST_CASE(a_wide_histogram_has_wider_bars_and_never_more) {
  std::vector<ckpt::HistogramBin> histogram;
  for (int exponent = -127; exponent <= 127; ++exponent) histogram.push_back({exponent, false, 1});
  const HistogramBars found = bars(histogram);
  BOOST_TEST(found.step == 32);
  BOOST_TEST(found.positive.size() <= HistogramBars::kBarsMax);
  BOOST_TEST(found.negative.empty());
}

BOOST_AUTO_TEST_CASE(a_thousandth_at_the_small_end_has_no_bar_of_its_own) {
  const HistogramBars found = bars({{-90, false, 1}, {0, false, 5000}}, 7);
  BOOST_TEST(found.positive.size() == 1u);
  BOOST_TEST(found.middle == 1);
}

BOOST_AUTO_TEST_CASE(zeros_alone_are_the_middle) {
  const HistogramBars found = bars({}, 3);
  BOOST_TEST(found.middle == HistogramBars::kHeightMax);
  BOOST_TEST(bars({}).middle == 0);
}

BOOST_AUTO_TEST_CASE(boxes_of_a_sample_are_few_and_apart) {
  for (const ckpt::Extents& shape : std::vector<ckpt::Extents>{{100}, {7, 33}, {64, 5, 9}, {}}) {
    for (const uint64_t most : {1, 10, 64, 100000}) {
      std::vector<int> seen(ckpt::element_count(shape));
      uint64_t count = 0;
      for (const ckpt::Box& box : optim::spread_boxes(shape, most)) {
        for (uint64_t i = 0; i < seen.size(); ++i) {
          uint64_t rest = i;
          bool is_inside = true;
          for (size_t dim = shape.size(); dim-- > 0;) {
            const uint64_t at = rest % shape[dim];
            rest /= shape[dim];
            is_inside =
                is_inside && at >= box.offsets[dim] && at < box.offsets[dim] + box.sizes[dim];
          }
          seen[i] += is_inside ? 1 : 0;
          count += is_inside ? 1 : 0;
        }
      }
      BOOST_TEST(*std::max_element(seen.begin(), seen.end()) == 1);
      BOOST_TEST(count <= std::max<uint64_t>(most, 1));
    }
  }
}

BOOST_AUTO_TEST_CASE(one_pass_gives_what_each_tensor_alone_gives) {
  for (const char* name : {"lw_muon_bf16_torch_dp2/ckpt", "lw_muon_bf16_torch_dist_dp2/ckpt",
                           "torch_save_zip/zip.pt"}) {
    const optim::OpenedTraining checkpoint = open(name);
    const optim::ReportPage page = report_of(checkpoint);
    const optim::ReportRows rows = list_rows(checkpoint, page.summary.groups.state.get());
    BOOST_TEST(page.looked_at_bytes == page.tensor_bytes);
    BOOST_REQUIRE(page.tensors.size() == rows.entries.size());
    for (size_t i = 0; i < rows.entries.size(); ++i) {
      const optim::ReportedTensor& row = page.tensors[i];
      const auto alone = optim::figures_of(make_statistics(*rows.entries[i], checkpoint));
      BOOST_TEST_CONTEXT(name << ": " << row.tensor.name << " " << row.tensor.state) {
        BOOST_REQUIRE(row.figures.has_value());
        BOOST_TEST(row.figures->element_count == alone.element_count);
        BOOST_TEST(row.figures->zero_count == alone.zero_count);
        BOOST_TEST(row.figures->nan_count == alone.nan_count);
        BOOST_TEST((row.figures->bars.negative == alone.bars.negative));
        BOOST_TEST((row.figures->bars.positive == alone.bars.positive));
        BOOST_REQUIRE(row.figures->moments.has_value() == alone.moments.has_value());
        if (!alone.moments) continue;
        BOOST_TEST(row.figures->moments->max == alone.moments->max);
        BOOST_TEST(row.figures->moments->norm == alone.moments->norm,
                   boost::test_tools::tolerance(1e-12));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sample_reads_no_more_than_it_may) {
  const optim::ReportPage page = report_of(open("lw_muon_bf16_torch_dp2/ckpt"), 8192);
  BOOST_TEST(page.is_sample);
  BOOST_TEST(page.looked_at_bytes <= 8192u);
  BOOST_TEST(page.looked_at_bytes > 4096u);
}

BOOST_AUTO_TEST_CASE(state_far_from_its_kind_is_marked) {
  std::vector<optim::ReportedTensor> tensors(7);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].tensor = {optim::KeyKind::OptimizerState, "w", "exp_avg", {}, {4}, 16};
    tensors[i].figures.emplace();
    tensors[i].figures->element_count = 4;
    tensors[i].figures->moments = {0, 1, 0, 1, 2};
  }
  tensors[1].figures->moments->norm = 1e5;
  tensors[2].figures->moments->norm = 1e-5;
  tensors[3].figures->zero_count = 4;
  tensors[3].figures->moments->norm = 0;
  tensors[4].figures->nan_count = 1;
  optim::add_marks(tensors);
  using Marks = std::vector<optim::Mark>;
  BOOST_TEST((tensors[0].marks == Marks{}));
  BOOST_TEST((tensors[1].marks == Marks{optim::Mark::Large}));
  BOOST_TEST((tensors[2].marks == Marks{optim::Mark::Small}));
  BOOST_TEST((tensors[3].marks == Marks{optim::Mark::AllZero}));
  BOOST_TEST((tensors[4].marks == Marks{optim::Mark::NotFinite}));
}

BOOST_AUTO_TEST_SUITE_END()
