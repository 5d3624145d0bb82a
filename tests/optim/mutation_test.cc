// Flips one bit at every byte of small files, and at every 17th one of a small Megatron checkpoint;
// in long runs at every byte of that, and at every 17th one of larger ones (at every byte with
// SHARDWISE_LONG_TESTS=all): verify reports it, or the byte is one that no reader looks at, or one
// that it lists as unprotected. There is no fourth case.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>
#include <ostream>

#include <ckpt/error.h>
#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>
#include <training/convert.h>
#include <training/verify.h>

#include "support/sanitizer.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;

struct Counts {
  uint64_t reported = 0;     // an error, or damage
  uint64_t padding = 0;      // passed: no reader looks at the byte
  uint64_t unprotected = 0;  // passed: verify says that nothing protects it
  uint64_t missed = 0;       // passed, although it should not
  bool operator==(const Counts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.reported << " reported, " << counts.padding << " padding, "
             << counts.unprotected << " unprotected, " << counts.missed << " missed";
}

// What verify says of each byte of each file.
using Labels = std::map<std::string, std::vector<ckpt::ByteLabel>>;

bool is_reported(const fs::path& path, Labels* labels = nullptr) {
  optim::VerifyOptions options;
  options.execution.threads = 1;
  if (labels != nullptr) {
    options.on_range = [labels](const ckpt::LabelledRange& range) {
      auto& own = (*labels)[std::string(range.path)];
      own.resize(std::max<size_t>(own.size(), range.bytes.end_bytes()), ckpt::ByteLabel::Unclaimed);
      std::fill_n(own.begin() + static_cast<ptrdiff_t>(range.bytes.offset_bytes),
                  range.bytes.count_bytes, range.label);
    };
  }
  try {
    return optim::verify(path, options).findings.damaged();
  } catch (const ckpt::Error&) {
    return true;
  }
}

class Flipper {
 public:
  explicit Flipper(const fs::path& path)
      : file_(path, std::ios::in | std::ios::out | std::ios::binary) {
    BOOST_REQUIRE(file_);
  }
  // Flips it, or flips it back.
  void flip(uint64_t offset_bytes) {
    file_.seekg(static_cast<std::streamoff>(offset_bytes));
    const int byte = file_.get();
    file_.seekp(static_cast<std::streamoff>(offset_bytes));
    file_.put(static_cast<char>(byte ^ 1 << (offset_bytes % 8)));
    file_.flush();
  }

 private:
  std::fstream file_;
};

void count(ckpt::ByteLabel label, Counts& counts) {
  switch (label) {
    case ckpt::ByteLabel::Padding: ++counts.padding; break;
    case ckpt::ByteLabel::Unprotected: ++counts.unprotected; break;
    default: ++counts.missed;
  }
}

// `path`: a file or a folder that nobody else reads; `folder`: what file names are relative to.
Counts flip_every_byte(const fs::path& path, const fs::path& folder, uint64_t step = 1) {
  Labels labels;
  BOOST_REQUIRE(!is_reported(path, &labels));
  Counts counts;
  for (const auto& [name, own] : labels) {
    BOOST_REQUIRE_EQUAL(own.size(), fs::file_size(folder / name));
    Flipper flipper(folder / name);
    uint64_t missed = counts.missed;
    for (uint64_t offset = 0; offset < own.size(); offset += step) {
      flipper.flip(offset);
      if (is_reported(path)) {
        ++counts.reported;
      } else {
        count(own[offset], counts);
        const bool is_missed = counts.missed != missed;
        missed = counts.missed;
        if (is_missed) BOOST_TEST_MESSAGE(name << " @" << offset);
      }
      flipper.flip(offset);
    }
  }
  BOOST_TEST(!is_reported(path));
  BOOST_TEST_MESSAGE(path.filename().string() << ": " << counts);
  return counts;
}

Counts flip_in_copy_of(const std::string& sample, uint64_t step = 1) {
  const test::TemporaryFolder folder;
  const fs::path copy = folder / fs::path(sample).filename().string();
  fs::copy(test::golden(sample), copy, fs::copy_options::recursive);
  return flip_every_byte(copy, fs::is_directory(copy) ? copy : folder.path(), step);
}

// A state dict of two tensors and a number, as a DCP folder.
Counts flip_in_small_dcp_folder(uint64_t step) {
  const test::TemporaryFolder folder;
  auto tree = std::make_shared<ckpt::ValueTree>();
  const ckpt::NodeId root = tree->dict();
  ckpt::TargetArchive archive{"model", tree, {}};
  for (const char* name : {"a", "b"}) {
    tree->put(root, name,
              ckpt::add_tensor(*tree, ckpt::DType::Float32, {2, 3},
                               std::to_string(archive.records.size())));
    archive.records.push_back({24, std::string(23, *name) + "."});
  }
  tree->put(root, "step", tree->integer(7));
  tree->set_root(root);
  ckpt::Target target;
  target.files.push_back({"model.pt", {archive}, {}});
  const ckpt::Checkpoint unused =
      ckpt::Checkpoint::open(test::golden("torch_save_zip/bare_tensor.pt"));
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  ckpt::execute(target, ckpt::make_plan(target), unused, staging, {});
  staging.commit();
  optim::ConvertOptions options;
  options.base.format = ckpt::Format::TorchDist;
  optim::convert(folder / "out/model.pt", folder / "made", options);
  return flip_every_byte(folder / "made", folder / "made", step);
}

constexpr uint64_t kLongStep = 17;

uint64_t long_step() {
  return std::string(std::getenv("SHARDWISE_LONG_TESTS")) == "all" ? 1 : kLongStep;
}

// Sanitized builds look for something else: counts are the others'.
void check(const Counts& counts, const Counts& expected) {
  if (test::kIsSanitized) {
    BOOST_TEST(counts.missed == 0u);
    BOOST_TEST(counts.reported > 0u);
  } else {
    BOOST_TEST(counts == expected);
  }
}

// Odd, so that every bit of a byte has its turn.
uint64_t small_step() { return test::sample_step(1, 7); }
uint64_t megatron_step() { return test::sample_step(17, 253); }

BOOST_AUTO_TEST_SUITE(every_flipped_bit)

BOOST_AUTO_TEST_CASE(of_a_torch_save_file_is_reported_or_has_a_label) {
  check(flip_in_copy_of("torch_save_zip/bare_tensor.pt", small_step()), {1555, 434, 0, 0});
}

BOOST_AUTO_TEST_CASE(of_a_dcp_folder_is_reported_or_has_a_label) {
  check(flip_in_small_dcp_folder(small_step()), {3854, 1369, 363, 0});
}

BOOST_AUTO_TEST_CASE(of_a_safetensors_file_is_reported_or_has_a_label) {
  const test::TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]}})";
  std::string content(1, static_cast<char>(header.size()));
  content += std::string(7, '\0') + header + "abcdefghijk";
  test::write_file(folder / "model.safetensors", content);
  check(flip_every_byte(folder / "model.safetensors", folder.path(), small_step()),
        {114, 0, 12, 0});
}

BOOST_AUTO_TEST_CASE(of_a_megatron_checkpoint_of_format_torch_is_reported_or_has_a_label) {
  check(flip_in_copy_of("gpt1l_tiny_torch_dp2", megatron_step()),
        test::is_long() ? Counts{57983, 4130, 0, 0} : Counts{3419, 237, 0, 0});
}

BOOST_AUTO_TEST_CASE(of_a_megatron_checkpoint_of_format_torch_dist_is_reported_or_has_a_label) {
  check(flip_in_copy_of("gpt1l_tiny_torch_dist_dp2", megatron_step()),
        test::is_long() ? Counts{87221, 15781, 315, 0} : Counts{5141, 919, 21, 0});
}

BOOST_AUTO_TEST_CASE(of_larger_megatron_checkpoints_is_reported_or_has_a_label) {
  if (!test::is_long()) {
    BOOST_TEST_MESSAGE("two minutes long: set SHARDWISE_LONG_TESTS");
    return;
  }
  BOOST_TEST(flip_in_copy_of("lw_muon_bf16_torch_dp2/ckpt", long_step()).missed == 0u);
  BOOST_TEST(flip_in_copy_of("lw_muon_bf16_torch_dist_dp2/ckpt", long_step()).missed == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
