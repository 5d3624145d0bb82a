// Random states as Python, NumPy, PyTorch and Megatron seed them. What is expected was printed by
// them (Python 3.11, NumPy 2.4, PyTorch 2.11, on the CPU):
//
//   random.seed(S); p = random.getstate()[1]; zlib.crc32(struct.pack("<624I", *p[:624]))
//   numpy.random.seed(S); n = numpy.random.get_state()[1]; zlib.crc32(n.astype("<u4").tobytes())
//   torch.manual_seed(S); zlib.crc32(torch.get_rng_state().numpy().tobytes())
#include "layouts/job/seeded_rng.h"

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "codec/crc32.h"
#include "support/errors.h"
#include "support/generated_state.h"

using ckpt::Value;
using test::contains;

namespace {

struct Seeded {
  uint32_t seed;
  std::array<uint32_t, 4> python;  // the first and the last two words
  uint32_t python_crc;
  std::array<uint32_t, 4> numpy;
  uint32_t numpy_crc, torch_crc;
};
constexpr Seeded kSeeded[] = {
    {1,
     {2147483648, 163610392, 906313207, 1781494222},
     4126251363,
     {1, 1812433254, 2386671612, 2069268389},
     2679547496,
     3380785255},
    {1234,
     {2147483648, 681931688, 2487267773, 343805460},
     3493078239,
     {1234, 3159640283, 3236601671, 3064478787},
     2288585702,
     3072169676},
    {1334,
     {2147483648, 3344346792, 2832032390, 2332764738},
     97666560,
     {1334, 4014339151, 2303152274, 1194318655},
     1328546165,
     2343650097},
    {2147483647,
     {2147483648, 726888938, 783340540, 2781649580},
     3499172689,
     {2147483647, 2817584439, 2424009422, 1152874731},
     3038296728,
     3822317895},
};

std::array<uint32_t, 4> ends_of(const optim::TwisterState& state) {
  return {state[0], state[1], state[622], state[623]};
}

uint32_t crc_of(std::string_view bytes) { return ckpt::crc32(std::as_bytes(std::span(bytes))); }
uint32_t crc_of(const optim::TwisterState& state) {
  return ckpt::crc32(std::as_bytes(std::span(state)));
}

// What a checkpoint with two stages of two tensor parallel ranks is given.
class Seeding {
 public:
  explicit Seeding(int64_t seed = 1234) : random_(1), generated_(random_, {.layers = 2}) {
    generated_.set_arg("seed", generated_.tree().integer(seed));
  }
  test::GeneratedState& generated() { return generated_; }
  // The state's list.
  Value run(const optim::RankCoordinates& at, uint32_t data_parallel = 2) {
    optim::LayerWiseTargetSpec spec;
    spec.sizes.data_parallel = data_parallel;
    spec.sizes.tensor_parallel = 2;
    spec.sizes.pipeline_parallel = 2;
    const optim::FiledState& state = generated_.state();
    const optim::TargetJob job{state, state, spec, {}, optim::target_grid(state, spec.sizes)};
    archive_ = {};
    const ckpt::NodeId made = optim::seeded_rng(job, at, archive_);
    made_ = archive_.finish("rng", made);
    return std::get<std::shared_ptr<const ckpt::ValueTree>>(made_.content)->root();
  }
  // Of a tensor of bytes.
  std::string bytes_of(const Value& tensor) const {
    const auto view = ckpt::as_tensor(tensor);
    BOOST_REQUIRE(view);
    BOOST_REQUIRE((view->dtype == ckpt::DType::UInt8));
    return std::get<std::string>(made_.records.at(std::stoul(view->storage_key)).source);
  }
  // Seed and offset of a CUDA generator.
  std::array<uint64_t, 2> cuda(const Value& tensor) const {
    const std::string bytes = bytes_of(tensor);
    std::array<uint64_t, 2> words{};
    BOOST_REQUIRE_EQUAL(bytes.size(), sizeof words);
    std::memcpy(words.data(), bytes.data(), sizeof words);
    return words;
  }

 private:
  test::Picker random_;
  test::GeneratedState generated_;
  ckpt::ArchiveBuilder archive_;
  ckpt::TargetArchive made_;
};

using Words = std::array<uint64_t, 2>;

}  // namespace

BOOST_AUTO_TEST_SUITE(seeded_rng)

BOOST_AUTO_TEST_CASE(twisters_are_seeded_as_python_and_numpy_seed_them) {
  for (const Seeded& known : kSeeded) {
    BOOST_TEST_CONTEXT("seed " << known.seed) {
      BOOST_TEST(ends_of(optim::keyed_twister(known.seed)) == known.python);
      BOOST_TEST(crc_of(optim::keyed_twister(known.seed)) == known.python_crc);
      BOOST_TEST(ends_of(optim::seeded_twister(known.seed)) == known.numpy);
      BOOST_TEST(crc_of(optim::seeded_twister(known.seed)) == known.numpy_crc);
    }
  }
}

// Stage 1 of a run with seed 1234 seeds with 1334.
BOOST_AUTO_TEST_CASE(each_generator_has_the_state_of_the_program_that_was_seeded) {
  for (const Seeded& known : kSeeded) {
    const uint32_t stage = known.seed == 1334 ? 1 : 0;
    Seeding seeding(int64_t{known.seed} - 100 * stage);
    BOOST_TEST_CONTEXT("seed " << known.seed) {
      const Value list = seeding.run({.pp = stage});
      BOOST_REQUIRE_EQUAL(list.size(), 1u);
      const Value python = list[0].at("random_rng_state");
      BOOST_REQUIRE_EQUAL(python[1].size(), 625u);
      BOOST_TEST(python[0].as_int() == 3);
      BOOST_TEST(python[1][1].as_int() == known.python[1]);
      BOOST_TEST(python[1][623].as_int() == known.python[3]);
      BOOST_TEST(python[1][624].as_int() == 624);
      BOOST_TEST(python[2].is_none());
      const Value numpy = list[0].at("np_rng_state");
      BOOST_TEST(numpy[0].text() == "MT19937");
      BOOST_TEST(crc_of((*numpy[1].state())[4].text()) == known.numpy_crc);
      BOOST_TEST(numpy[2].as_int() == 624);
      BOOST_TEST(crc_of(seeding.bytes_of(list[0].at("torch_rng_state"))) == known.torch_crc);
    }
  }
}

// model_parallel_cuda_manual_seed of Megatron-Core: seed + 2718 + tensor parallel rank, and
// seed + 1024 + 100 x expert parallel rank + expert tensor parallel rank.
BOOST_AUTO_TEST_CASE(trackers_are_seeded_by_the_place_of_the_rank) {
  Seeding seeding;
  const Value state = seeding.run({.tp = 1, .dp = 1, .pp = 1, .etp = 1, .ep = 3})[0];
  BOOST_TEST((seeding.cuda(state.at("cuda_rng_state")) == Words{1334, 0}));
  const Value trackers = state.at("rng_tracker_states");
  BOOST_REQUIRE_EQUAL(trackers.item_count(), 3u);
  BOOST_TEST((seeding.cuda(trackers.at("data-parallel-rng")) == Words{1334, 0}));
  BOOST_TEST((seeding.cuda(trackers.at("model-parallel-rng")) == Words{1334 + 2718 + 1, 0}));
  BOOST_TEST((seeding.cuda(trackers.at("expert-parallel-rng")) == Words{1334 + 1024 + 301, 0}));
}

BOOST_AUTO_TEST_CASE(with_data_parallel_random_init_each_data_parallel_rank_has_a_state) {
  Seeding seeding;
  auto& generated = seeding.generated();
  generated.set_arg("data_parallel_random_init", generated.tree().boolean(true));
  const Value list = seeding.run({.pp = 1}, 3);
  BOOST_REQUIRE_EQUAL(list.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) {
    const Words expected = {1334 + 10 * rank, 0};
    BOOST_TEST((seeding.cuda(list[rank].at("cuda_rng_state")) == expected));
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_seeded_is_refused_by_name) {
  for (const int64_t seed : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    Seeding seeding(seed);
    const auto error = test::error_of([&] { seeding.run({}); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(error->where().key == "rng_state");
    BOOST_TEST(contains(error->problem(), "args.seed is not a positive number"));
    BOOST_TEST(contains(error->hint(), "--rng"));
  }
  for (const bool is_tracker : {false, true}) {
    Seeding seeding;
    ckpt::ValueTree& tree = seeding.generated().tree();
    const Value first = tree.value(seeding.generated().state().rng_states[0].value)[0];
    tree.put(is_tracker ? first.at("rng_tracker_states").id() : first.id(), "of_my_own",
             tree.none());
    const auto error = test::error_of([&] { seeding.run({}); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Unsupported));
    BOOST_TEST(contains(error->problem(), "'of_my_own', which is not known"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
