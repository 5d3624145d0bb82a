// Every allocation of reading, planning, verifying and writing fails once, or from there on for
// good.
#include <ckpt/error.h>
#include <training/verify.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <new>

#include "faults/allocations/failing_new.h"
#include "faults/conversions.h"
#include "support/sanitizer.h"

using namespace test;

namespace {

using Kind = FailingNew::Kind;

// Something that allocates, and tells what came of it.
struct Work {
  std::string name;
  std::function<std::string()> run;
};

enum class End : uint8_t { Done, OutOfMemory };

// So many allocations are let fail, evenly spread; all of them in long tests.
constexpr uint64_t kSamples = kIsSanitized ? 20 : 100;

uint64_t stride_of(uint64_t count) {
  if (std::getenv("SHARDWISE_LONG_TESTS") != nullptr) return 1;
  return std::max<uint64_t>(1, count / kSamples);
}

std::string text_of(const optim::ConvertReport& report) {
  std::string text = std::to_string(report.plan.total_bytes);
  for (const ckpt::PlannedFile& file : report.plan.files) {
    text += " " + file.path + ":" + std::to_string(file.count_bytes);
  }
  return text;
}

Work planning(const fs::path& source, ckpt::Format format) {
  const auto run = [=] {
    optim::ConvertOptions options = on_one_thread();
    options.base.format = format;
    options.base.dry_run = true;
    return text_of(optim::convert(source, source.string() + ".never", options));
  };
  return {"plan of " + source.filename().string() + " to " + std::string(name(format)), run};
}

Work verifying(const fs::path& source) {
  const auto run = [=] {
    optim::VerifyOptions options;
    options.execution.threads = 4;
    const optim::VerifyReport report = optim::verify(source, options);
    return std::to_string(report.findings.compared_checksums) + " checksums, " +
           std::to_string(report.findings.findings.size()) + " findings";
  };
  return {"verify of " + source.filename().string(), run};
}

End run(const Work& work, Kind kind, uint64_t number, std::string& text) {
  const FailingNew failing(kind, number);
  try {
    text = work.run();
    return End::Done;
  } catch (const std::bad_alloc&) {
    return End::OutOfMemory;
  }
}

// Out of memory is always called that: not damage, not another format. What can do without (a
// buffer that is left out) comes to the same.
void fail_every_allocation(
    const Work& work, const std::function<void()>& prepare = [] {},
    const std::function<void(End, const std::string&)>& check = {}) {
  std::string expected, text;
  for (int i = 0; i < 2; ++i) {  // the second one finds what is made once and kept
    prepare();
    BOOST_REQUIRE(run(work, Kind::None, 0, expected) == End::Done);
  }
  const uint64_t count = FailingNew::count();
  uint64_t failed = 0;
  for (const Kind kind : {Kind::Once, Kind::ForGood}) {
    for (uint64_t number = 0; number < count; number += stride_of(count)) {
      const std::string what = work.name + ": allocation " + std::to_string(number) + " of " +
                               std::to_string(count) +
                               (kind == Kind::ForGood ? " and all that follow" : "");
      prepare();
      text = expected;
      text.shrink_to_fit();
      const int64_t live_before = live_allocations();
      End end = End::Done;
      try {
        end = run(work, kind, number, text);
      } catch (const std::exception& error) {
        BOOST_FAIL(what << " is told as: " << error.what());
      }
      const int64_t left = live_allocations() - live_before;  // a logger keeps what follows
      BOOST_TEST_REQUIRE((end == End::OutOfMemory || text == expected), what << ": " << text);
      BOOST_TEST(left == 0, what << " leaks");
      if (check) check(end, what);
      failed += end == End::OutOfMemory ? 1 : 0;
    }
  }
  prepare();
  BOOST_REQUIRE(run(work, Kind::None, 0, text) == End::Done);
  BOOST_TEST(text == expected);
  BOOST_TEST_MESSAGE(work.name << ": " << count << " allocations, " << failed << " failed");
}

// A DCP folder whose entries are compressed.
fs::path compressed_folder_in(const TemporaryFolder& folder) {
  optim::ConvertOptions options = on_one_thread();
  options.base.format = ckpt::Format::TorchDist;
  options.base.zstd_level = 1;
  optim::convert(golden("torch_save_zip/zip.pt"), folder / "compressed", options);
  return folder / "compressed";
}

// Its .metadata is so long that one thread reads and another one collects.
fs::path folder_of_many_in(const TemporaryFolder& folder) {
  constexpr int kCount = 4000;
  std::string header = "{";
  for (int i = 0; i < kCount; ++i) {
    header += (i ? ",\"" : "\"") + std::string(200, 'k') + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  write_safetensors(folder / "many.safetensors", header + "}", std::string(kCount, 'v'));
  optim::ConvertOptions options = on_one_thread();
  options.base.format = ckpt::Format::TorchDist;
  optim::convert(folder / "many.safetensors", folder / "many", options);
  return folder / "many";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(every_allocation)

BOOST_AUTO_TEST_CASE(of_a_plan_fails_and_nothing_is_lost_or_called_damage) {
  const TemporaryFolder folder;
  const fs::path safetensors = folder / "source.safetensors";
  write_large_safetensors(safetensors);
  const Work works[] = {
      planning(golden("lw_muon_bf16_torch_dp2/ckpt"), ckpt::Format::TorchDist),
      planning(golden("lw_muon_bf16_torch_dist_dp2/ckpt"), ckpt::Format::Torch),
      planning(golden("lw_muon_bf16_torch_dist_dp2/ckpt"), ckpt::Format::Safetensors),
      planning(golden("torch_save_zip/zip.pt"), ckpt::Format::TorchDist),
      planning(golden("torch_save_zip/legacy.pt"), ckpt::Format::Safetensors),
      planning(safetensors, ckpt::Format::Torch),
      planning(compressed_folder_in(folder), ckpt::Format::Torch),
      planning(folder_of_many_in(folder), ckpt::Format::Torch)};
  for (const Work& work : works) fail_every_allocation(work);
}

BOOST_AUTO_TEST_CASE(of_a_look_at_every_byte_on_four_threads_fails_and_nothing_is_called_damage) {
  const TemporaryFolder folder;
  fail_every_allocation(verifying(golden("lw_muon_bf16_torch_dp2/ckpt")));
  fail_every_allocation(verifying(golden("lw_muon_bf16_torch_dist_dp2/ckpt")));
  fail_every_allocation(verifying(compressed_folder_in(folder)));
}

BOOST_AUTO_TEST_CASE(of_a_conversion_fails_and_nothing_half_is_left) {
  const TemporaryFolder sources, more_sources;
  Hasty calls;
  const ckpt::InstalledSystemCalls installed(calls);
  std::vector<Conversion> conversions = other_conversions_in(sources);
  for (Conversion& conversion : conversions_in(more_sources)) {
    if (conversion.name == "reshard") conversions.push_back(std::move(conversion));
  }
  for (const Conversion& conversion : conversions) {
    const TemporaryFolder folder;
    const fs::path out = folder / "out";
    conversion.run(out, on_one_thread());
    const Tree whole = content_of(out);
    const Work work{conversion.name, [&] {
                      optim::ConvertOptions options;
                      options.base.execute.threads = 3;
                      return text_of(conversion.run(out, options));
                    }};
    const auto prepare = [&] {
      fs::remove_all(out);
      ckpt::Staging::clean(out);
    };
    // Who can allocate nothing more leaves to the next run what is to be removed.
    const auto check = [&](End end, const std::string& what) {
      const Tree now = content_of(out);
      BOOST_TEST_REQUIRE((now == whole || (now.empty() && end == End::OutOfMemory)), what);
      const bool is_left = fs::exists(folder / ".out.shardwise-partial");
      const bool may_be_left = now == whole || what.ends_with("follow");
      BOOST_TEST_REQUIRE((!is_left || may_be_left), what << ": the staging folder is left");
    };
    fail_every_allocation(work, prepare, check);
  }
}

BOOST_AUTO_TEST_SUITE_END()
