// Muon's element-wise kernels, the mirror and the queue of Newton-Schulz products, compiled for the
// CPU, against their twins: bit for bit.
#include <kernels/muon.h>
#include <kernels/newton_schulz.h>

#include <cstdlib>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/emulation/placed_tensors.h"
#include "kernels/muon_twin.h"

namespace {

using namespace kernels;

constexpr ElementType kNone = ElementType::None, kF32 = ElementType::F32, kBF16 = ElementType::BF16,
                      kF16 = ElementType::F16, kSplit = ElementType::SplitF32;

bool is_long() { return std::getenv("SHARDWISE_LONG_TESTS") != nullptr; }

struct MuonCase {
  MuonTypes types;
  int64_t rows, columns;
  std::vector<uint32_t> parts;  // rows of each part of a group; empty: no split
  int weights;
};

std::vector<unsigned char> random_elements(ElementType type, int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 0.1F);
  std::vector<unsigned char> elements(static_cast<size_t>(count * bytes_of(type)));
  for (int64_t i = 0; i < count; ++i) {
    store_bits(elements.data(), i, type, encode(type, normal(random)));
  }
  return elements;
}

// A matrix on the device, and by the twin.
struct MatrixPair {
  PlacedTensor iterate, update;
  std::vector<unsigned char> expected_iterate;
  MuonMatrix device, twin;
};

void fill_weight(MuonMatrix& m, const TensorSlot& slot) {
  m.grad = slot.grad;
  m.main = slot.main;
  m.remainder = slot.remainder;
  m.momentum = slot.state[0];
  m.model = slot.model;
}

// Weights of one table, of which each part is a matrix.
class MuonTable {
 public:
  MuonTable(const MuonCase& c, std::mt19937& random)
      : case_(c),
        stored_{c.types.grad, c.types.main, {c.types.momentum, kNone}, c.types.model},
        misaligned_(random() % 3 == 0) {
    expected_.reserve(static_cast<size_t>(c.weights));
    placed_.reserve(static_cast<size_t>(c.weights));
    for (int i = 0; i < c.weights; ++i) {
      expected_.push_back(slot_of_pool(stored_, c.rows * c.columns, random));
      placed_.emplace_back(expected_.back(), stored_, random, misaligned_);
      add_matrices(random);
    }
    for (const MatrixPair& pair : pairs_) matrices_.push_back(pair.device);
    int64_t chunk_count = 0;
    for (const MuonMatrix& m : matrices_) chunk_count += chunks_of(count_of(m));
    chunks_.resize(static_cast<size_t>(chunk_count));
    fill_chunks(matrices_.data(), static_cast<uint32_t>(matrices_.size()), chunks_.data());
  }

  // Empty, or what differs after a step under these settings.
  std::string problem_of(const GroupSettings& settings, std::mt19937& random) {
    StepControl control;
    control.inverse_loss_scale = 0.5F;
    control.clip = random() % 2 == 0 ? 1 : 0.75F;
    const RuleScalars scalars = make_scalars(settings);
    std::vector<double> partials(chunks_.size(), -1);
    std::vector<float> divisors(matrices_.size(), -1);
    MuonRequest request = {matrices_.data(),
                           chunks_.data(),
                           partials.data(),
                           divisors.data(),
                           &scalars,
                           &settings,
                           &control,
                           static_cast<uint32_t>(matrices_.size()),
                           static_cast<uint32_t>(chunks_.size()),
                           case_.types,
                           drawn_block_count(random)};
    const MuonTwin twin = {case_.types,
                           {scalars, control.inverse_loss_scale, control.clip, settings.nesterov}};
    draw_order(random);
    if (muon_prepare(request, nullptr) != cudaSuccess) return "prepare is refused";
    for (const MatrixPair& pair : pairs_) twin.prepare(pair.twin);
    const std::string prepared = difference();
    if (!prepared.empty()) return "prepare: " + prepared;
    draw_order(random);
    if (muon_finish(request, nullptr) != cudaSuccess) return "finish is refused";
    for (const MatrixPair& pair : pairs_) twin.finish(pair.twin);
    const std::string finished = difference();
    if (!finished.empty()) return "finish: " + finished;
    control.skip = 1;
    if (muon_prepare(request, nullptr) != cudaSuccess) return "prepare is refused";
    if (muon_finish(request, nullptr) != cudaSuccess) return "finish is refused";
    const std::string skipped = difference();
    return skipped.empty() ? "" : "a skipped step: " + skipped;
  }

 private:
  void add_matrices(std::mt19937& random) {
    const bool is_split = !case_.parts.empty();
    std::vector<uint32_t> parts = case_.parts;
    if (!is_split) parts = {static_cast<uint32_t>(case_.rows)};
    uint32_t group_rows = 0, first_row = 0;
    for (const uint32_t rows : parts) group_rows += rows;
    const TensorSlot slot = placed_.back().slot();
    for (const uint32_t part_rows : parts) {
      MuonMatrix m = {};
      m.rows = case_.rows / group_rows * part_rows;
      m.columns = case_.columns;
      m.part_rows = part_rows;
      m.group_rows = group_rows;
      m.first_row = first_row;
      m.scale = 2;
      m.extra_scale = 0.2F;
      first_row += part_rows;
      const ElementType type = case_.types.iterate;
      const size_t skew = misaligned_ ? static_cast<size_t>(bytes_of(type)) : 0;
      pairs_.push_back({PlacedTensor(random_elements(type, count_of(m), random), skew),
                        PlacedTensor(random_elements(type, count_of(m), random), skew),
                        {},
                        m,
                        m});
      MatrixPair& pair = pairs_.back();
      pair.expected_iterate.resize(pair.iterate.size());
      std::copy_n(pair.iterate.data(), pair.iterate.size(), pair.expected_iterate.begin());
      fill_weight(pair.device, slot);
      pair.device.iterate = pair.iterate.data();
      fill_weight(pair.twin, expected_.back().slot(stored_));
      pair.twin.iterate = pair.expected_iterate.data();
      pair.device.update = pair.twin.update = pair.update.data();
      pair.device.is_aligned = is_aligned(pair.device) ? 1 : 0;
    }
  }

  std::string difference() const {
    for (size_t i = 0; i < placed_.size(); ++i) {
      const std::string problem = placed_[i].difference(expected_[i]);
      if (!problem.empty()) return "weight " + std::to_string(i) + ": " + problem;
    }
    for (const MatrixPair& pair : pairs_) {
      if (!pair.iterate.guards_are_whole()) return "an iterate was written beside";
      if (!same_elements(case_.types.iterate, pair.iterate.data(), pair.expected_iterate.data(),
                         count_of(pair.device))) {
        return "an iterate differs";
      }
    }
    return "";
  }

  MuonCase case_;
  TensorTypes stored_;
  bool misaligned_;
  std::vector<SlotMemory> expected_;
  std::vector<PlacedSlot> placed_;
  std::vector<MatrixPair> pairs_;
  std::vector<MuonMatrix> matrices_;
  std::vector<Chunk> chunks_;
};

GroupSettings drawn_settings(std::mt19937& random) {
  constexpr Decay kDecays[] = {Decay::Decoupled, Decay::L2, Decay::Independent, Decay::Palm};
  GroupSettings settings = {};
  settings.lr = 0.01;
  settings.weight_decay = random() % 3 == 0 ? 0 : 0.1;
  settings.beta1 = random() % 3 == 0 ? 0.3 : 0.95;
  settings.rule = RuleKind::Muon;
  settings.decay = kDecays[random() % 4];
  settings.nesterov = random() % 2 == 0;
  return settings;
}

MuonCase drawn_shape(const MuonTypes& types, std::mt19937& random) {
  MuonCase c = {types, 1 + below(32, random), 1 + below(48, random), {}, 1 + below(3, random)};
  if (random() % 2 == 0) c.columns = (c.columns + 7) / 8 * 8;
  if (random() % 3 == 0) {
    c.parts = {4, 1, 2};
    c.rows = 7 * (1 + below(4, random));
  }
  return c;
}

std::vector<MuonTypes> all_types() {
  std::vector<MuonTypes> all;
  for (const ElementType grad : {kF32, kBF16, kF16}) {
    for (const ElementType main : {kF32, kSplit}) {
      for (const ElementType momentum : {kF32, kBF16}) {
        for (const ElementType model : {kNone, kBF16, kF16}) {
          for (const ElementType iterate : {kBF16, kF32}) {
            all.push_back({grad, main, momentum, model, iterate});
          }
        }
      }
    }
  }
  return all;
}

struct Products {
  NewtonSchulzShape shape;
  std::vector<NewtonSchulzCoefficients> coefficients;
};

// Memory of a batch as the device asks for it: at multiples of 256 bytes.
struct Batch {
  explicit Batch(size_t bytes) : memory(bytes + 256) {}
  unsigned char* data() {
    return memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  }
  std::vector<unsigned char> memory;
};

// How many products the queue takes; 0 where its result differs from the twin's.
int products_of(const Products& p, std::mt19937& random) {
  const NewtonSchulzShape& s = p.shape;
  const int64_t edge = std::min(s.rows, s.columns);
  const std::vector<unsigned char> start =
      random_elements(s.type, s.rows * s.columns * s.batch, random);
  const auto square = static_cast<size_t>(edge * edge * s.batch * bytes_of(s.type));
  std::vector<const void*> results;
  Batch x(start.size()), next(start.size()), gram(square), polynomial(square), workspace(1);
  Batch twin_x(start.size()), twin_next(start.size()), twin_gram(square), twin_polynomial(square);
  std::copy(start.begin(), start.end(), x.data());
  std::copy(start.begin(), start.end(), twin_x.data());
  const NewtonSchulzBuffers buffers = {x.data(), next.data(), gram.data(), polynomial.data(),
                                       workspace.data()};
  const NewtonSchulzBuffers twin = {twin_x.data(), twin_next.data(), twin_gram.data(),
                                    twin_polynomial.data(), nullptr};
  const auto steps = static_cast<int>(p.coefficients.size());
  const int before = emulation::products_done();
  draw_order(random);
  NewtonSchulz plan;
  const auto handle = reinterpret_cast<cublasLtHandle_t>(&plan);
  if (plan.prepare(handle, s) != cudaSuccess || plan.bind(buffers) != cudaSuccess) return 0;
  if (plan.run(buffers, p.coefficients.data(), steps, nullptr) != cudaSuccess) return 0;
  newton_schulz_twin(s, twin, p.coefficients);
  const auto count = s.rows * s.columns * s.batch;
  const bool are_same =
      same_elements(s.type, static_cast<unsigned char*>(newton_schulz_result(buffers, steps)),
                    static_cast<unsigned char*>(newton_schulz_result(twin, steps)), count);
  return are_same ? emulation::products_done() - before : 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(muon_on_the_cpu)

BOOST_AUTO_TEST_CASE(prepare_and_finish_of_all_types_equal_the_twins) {
  std::mt19937 random(1);
  for (const MuonTypes& types : all_types()) {
    for (int i = 0; i < (is_long() ? 100 : 4); ++i) {
      MuonTable table(drawn_shape(types, random), random);
      const std::string problem = table.problem_of(drawn_settings(random), random);
      BOOST_TEST(problem == "", problem);
    }
  }
}

// More matrices than a block has warps; more chunks than blocks, and than a warp has lanes.
BOOST_AUTO_TEST_CASE(many_matrices_and_many_chunks_equal_the_twins) {
  std::mt19937 random(2);
  const MuonTypes types = {kBF16, kF32, kF32, kBF16, kBF16};
  for (const MuonCase& c : {MuonCase{types, 3, 8, {}, 20},
                            {types, 150, 220, {}, 2},
                            {types, 140, 301, {4, 1, 2}, 1},
                            {types, 140, 304, {4, 1, 2}, 1},
                            {types, 760, 720, {}, 1}}) {
    MuonTable table(c, random);
    const std::string problem = table.problem_of(drawn_settings(random), random);
    BOOST_TEST(problem == "", problem << ": " << c.rows << " x " << c.columns);
  }
}

BOOST_AUTO_TEST_CASE(mirrors_of_any_edge_equal_the_twin) {
  std::mt19937 random(3);
  for (const ElementType type : {kF32, kBF16, kF16}) {
    for (const int64_t edge : {1, 31, 32, 33, 63, 64, 65, 96, 100, 129, 161}) {
      for (const int64_t block : {32, 64, 96}) {
        const int64_t batch = 1 + static_cast<int64_t>(random() % 3);
        std::vector<unsigned char> expected = random_elements(type, edge * edge * batch, random);
        const PlacedTensor found(expected, 0);
        draw_order(random);
        const MirrorRequest request = {found.data(), type, edge, batch, block};
        BOOST_TEST(mirror_blocks(request, nullptr) == cudaSuccess);
        mirror_twin({expected.data(), type, edge, batch, block});
        BOOST_TEST(std::equal(expected.begin(), expected.end(), found.data()),
                   edge << " in blocks of " << block);
        BOOST_TEST(found.guards_are_whole());
      }
    }
  }
}

// Blocks take a second turn.
BOOST_AUTO_TEST_CASE(mirrors_of_more_matrices_than_a_grid_takes_at_once_equal_the_twin) {
  std::mt19937 random(4);
  constexpr int64_t kBatch = 1024 + 3;
  const std::vector<unsigned char> start = random_elements(kF16, 33 * 33 * kBatch, random);
  std::vector<unsigned char> expected = start;
  mirror_twin({expected.data(), kF16, 33, kBatch, 32});
  for (const auto order : {emulation::Order::Forward, emulation::Order::Backward}) {
    const PlacedTensor found(start, 0);
    emulation::set_order(order, 1);
    BOOST_TEST(mirror_blocks({found.data(), kF16, 33, kBatch, 32}, nullptr) == cudaSuccess);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), found.data()));
  }
}

BOOST_AUTO_TEST_CASE(newton_schulz_of_any_shape_equals_the_twin) {
  std::mt19937 random(5);
  const std::vector<NewtonSchulzCoefficients> steps = {
      {4.0848F, -6.8946F, 2.9270F}, {3.3656576F, -3.3420992F, 0}, {2.8366F, -3.0525F, 1.2012F}};
  for (const ElementType type : {kF32, kBF16}) {
    for (const auto& [rows, columns] :
         {std::pair{1, 1}, {1, 5}, {5, 1}, {7, 20}, {20, 7}, {34, 40}, {40, 34}, {64, 64}}) {
      for (const int64_t block : {0, 32}) {
        const NewtonSchulzShape shape = {rows, columns, 2, type, false, block, block};
        BOOST_TEST(products_of({shape, steps}, random) > 0, rows << " x " << columns);
      }
    }
  }
}

// A cubic step squares nothing: two products, of which the first is in blocks.
BOOST_AUTO_TEST_CASE(cubic_steps_take_two_products) {
  std::mt19937 random(6);
  const std::vector<NewtonSchulzCoefficients> cubic = {{3, -2, 0}}, quintic = {{3, -2, 1}};
  for (const ElementType type : {kF32, kBF16}) {
    const NewtonSchulzShape whole = {40, 70, 1, type, false, 0, 0},
                            parts = {40, 70, 1, type, false, 32, 32},
                            gram = {40, 70, 1, type, false, 32, 0};
    BOOST_TEST(products_of({whole, cubic}, random) == 2);
    BOOST_TEST(products_of({whole, quintic}, random) == 3);
    BOOST_TEST(products_of({parts, cubic}, random) == 3 + 1);
    BOOST_TEST(products_of({parts, quintic}, random) == 3 + 3 + 1);
    BOOST_TEST(products_of({gram, quintic}, random) == 3 + 1 + 1);
  }
}

// Rows and columns of X contiguous; the iterate in each of its two buffers.
BOOST_AUTO_TEST_CASE(products_by_tiles_equal_the_twin) {
  std::mt19937 random(7);
  const std::vector<NewtonSchulzCoefficients> steps = {
      {4.0848F, -6.8946F, 2.9270F}, {3, -2, 0}, {2.8366F, -3.0525F, 1.2012F}};
  for (const SymmetricBy by : {SymmetricBy::TilesAlone, SymmetricBy::TilesInPairs}) {
    for (const auto& [rows, columns] : {std::pair{136, 200}, {144, 48}, {64, 64}}) {
      NewtonSchulzShape shape = {rows, columns, 2, kBF16, false};
      shape.gram_by = shape.polynomial_by = by;
      BOOST_TEST(products_of({shape, steps}, random) == 3, rows << " x " << columns);
      shape.polynomial_by = SymmetricBy::CublasLt;
      BOOST_TEST(products_of({shape, steps}, random) == 3 + 2, rows << " x " << columns);
    }
  }
}

BOOST_AUTO_TEST_CASE(tiles_take_only_what_was_bound) {
  NewtonSchulzShape shape = {64, 64, 1, kBF16, false};
  shape.gram_by = SymmetricBy::TilesAlone;
  Batch memory(5 * 8192);
  const auto at = [&](int i) { return memory.data() + i * 8192; };
  const NewtonSchulzBuffers buffers = {at(0), at(1), at(2), at(3), at(4)};
  const NewtonSchulzCoefficients step = {1, 1, 1};
  NewtonSchulz plan;
  const auto handle = reinterpret_cast<cublasLtHandle_t>(&plan);
  BOOST_TEST(plan.bind(buffers) == cudaErrorInvalidValue);  // nothing was prepared
  BOOST_TEST(plan.prepare(handle, shape) == cudaSuccess);
  BOOST_TEST(plan.run(buffers, &step, 1, nullptr) == cudaErrorInvalidValue);
  BOOST_TEST(plan.bind(buffers) == cudaSuccess);
  BOOST_TEST(plan.run(buffers, &step, 1, nullptr) == cudaSuccess);
  NewtonSchulzBuffers moved = buffers;
  moved.iterate = buffers.workspace;
  BOOST_TEST(plan.run(moved, &step, 1, nullptr) == cudaErrorInvalidValue);
  for (const ElementType type : {kF32, kBF16}) {
    NewtonSchulzShape refused = {60, 64, 1, type, false};
    if (type == kF32) refused.rows = 64;
    refused.gram_by = SymmetricBy::TilesInPairs;
    BOOST_TEST(plan.prepare(handle, refused) == cudaErrorNotSupported);
  }
}

BOOST_AUTO_TEST_SUITE_END()
