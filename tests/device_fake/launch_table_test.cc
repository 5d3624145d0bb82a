// The page's table of what a queued step launches is what it launches. With SHARDWISE_UPDATE_DOCS=1
// the table is rewritten (scripts/update_docs).
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "plans.h"

namespace {

using plans::Model;

struct Row {
  const char* name;
  void (*fill)(Model& model);
  uint32_t parts = 1;
  bool records = false, moves = false;
};

void add_whole(Model& model) {
  plans::add_adam(model);
  plans::add_fp8(model);
  plans::add_muon(model, plans::kBF16);
}

const Row kRows[] = {
    {"AdamW: three tensors of one kind", plans::add_adam},
    {"the same, gradients elsewhere than before", plans::add_adam, 1, false, true},
    {"AdamW, fp8 and fp16 states", plans::add_fp8},
    {"Muon: three weights of a shape and a fused one, two iterations",
     [](Model& model) { plans::add_muon(model, plans::kBF16); }},
    {"all of these", add_whole},
    {"the same, `optimizer_cuda_graph`", add_whole, 1, true},
    {"the same, in four parts (`overlap_param_gather`)", add_whole, 4},
    {"Muon on Gram matrices: two weights of a shape, its transpose, a shorter and a fused one",
     [](Model& model) { plans::add_gram(model, plans::kBF16); }},
};

int64_t count(const std::vector<fake_cuda::Call>& calls, const std::vector<std::string>& names) {
  return std::ranges::count_if(calls, [&](const fake_cuda::Call& call) {
    return std::ranges::find(names, call.name) != names.end();
  });
}

std::string line_of(const Row& row) {
  Model model;
  row.fill(model);
  plans::deal_to_parts(model, row.parts);
  plans::FakeStep step(model.plan);
  if (row.records) step.capture();
  step.take(model.rates(0.01));
  const auto moved = row.moves ? model.moved_grads() : std::vector<const void*>();
  fake_cuda::reset();
  step.take(model.rates(0.01), {}, moved);
  BOOST_TEST(step.status == 0);
  const auto& calls = fake_cuda::calls();
  const auto& work = fake_cuda::work();
  const int64_t asked = count(calls, {"cudaStreamIsCapturing"});
  const int64_t kernels = std::ranges::count_if(work, [](const auto& w) { return w.is_kernel; });
  const int64_t products = count(work, {"cublasLtMatmul"});
  std::ostringstream line;
  line << "| " << row.name << " | " << static_cast<int64_t>(calls.size()) - asked << " | "
       << count(calls, {"cudaGraphLaunch"}) << " | " << kernels - products << " | " << products
       << " | " << count(work, {"cudaMemsetAsync"}) << " | "
       << count(calls, {"cudaStreamSynchronize", "cudaMemcpyAsync"}) << " |\n";
  return line.str();
}

std::string table() {
  std::string text =
      "| step | calls of the host | graphs | kernels | products | fills | waits, copies |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const Row& row : kRows) text += line_of(row);
  return text;
}

constexpr const char* kBegin = "<!-- begin: launch_table_test.cc -->\n";
constexpr const char* kEnd = "<!-- end: launch_table_test.cc -->\n";

}  // namespace

BOOST_AUTO_TEST_SUITE(launch_table)

BOOST_AUTO_TEST_CASE(the_page_lists_what_a_step_launches) {
  fake_cuda::reset();
  fake_cuda::set_executes(false);
  fake_cuda::set_multiprocessors(132);
  const std::string file = std::string(SHARDWISE_DOCS_DIR) + "/records/optimizer_steps.md";
  std::ifstream in(file);
  const std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t begin = page.find(kBegin), end = page.find(kEnd);
  BOOST_REQUIRE(begin != std::string::npos);
  BOOST_REQUIRE(end > begin);
  const size_t first = begin + std::string(kBegin).size();
  const std::string found = page.substr(first, end - first), expected = table();
  if (std::getenv("SHARDWISE_UPDATE_DOCS") != nullptr) {
    std::ofstream(file) << page.substr(0, first) << expected << page.substr(end);
    return;
  }
  BOOST_TEST(found == expected);
}

BOOST_AUTO_TEST_SUITE_END()
