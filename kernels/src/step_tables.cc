#include "step_tables.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace kernels {
namespace {

bool same(const TensorTypes& a, const TensorTypes& b) {
  return a.grad == b.grad && a.main == b.main && a.state[0] == b.state[0] &&
         a.state[1] == b.state[1] && a.model == b.model;
}

bool is_one_of(ElementType type, std::initializer_list<ElementType> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

bool muon_makes_sense(const StepParam& param, const MuonSettings& muon) {
  using enum ElementType;
  const int64_t group_rows = int64_t{param.qkv_rows[0]} + param.qkv_rows[1] + param.qkv_rows[2];
  return param.rows > 0 && param.columns > 0 && param.rows <= UINT32_MAX &&
         param.rows <= INT64_MAX / param.columns &&
         param.rows * param.columns == param.slot.count &&
         (group_rows == 0 || param.rows % group_rows == 0) && muon.scale &&
         is_one_of(muon.type, {BF16, F32}) && is_one_of(param.types.grad, {F32, BF16, F16}) &&
         is_one_of(param.types.main, {F32, SplitF32}) &&
         is_one_of(param.types.state[0], {F32, BF16}) && param.types.state[1] == None &&
         is_one_of(param.types.model, {None, BF16, F16});
}

// Pointers that the types need are there, scales of scaled types among them.
bool has_memory(const StepParam& param) {
  const TensorSlot& slot = param.slot;
  if (slot.count == 0) return true;
  const ElementType stored[] = {param.types.main, param.types.state[0], param.types.state[1]};
  const void* const memory[] = {slot.main, slot.state[0], slot.state[1]};
  for (int i = 0; i < 3; ++i) {
    if (stored[i] == ElementType::None) continue;
    if (memory[i] == nullptr || (is_scaled(stored[i]) && slot.scale[i] == nullptr)) return false;
  }
  return slot.grad != nullptr &&
         (param.types.main != ElementType::SplitF32 || slot.remainder != nullptr);
}

bool has_grad(const StepParam& param) {
  using enum ElementType;
  return is_one_of(param.types.grad, {F32, BF16, F16}) &&
         (param.slot.count == 0 || param.slot.grad != nullptr);
}

// The row of a table that takes statistics of a gradient, and no more.
TensorSlot counted_slot(const TensorSlot& slot) {
  TensorSlot counted = {};
  counted.grad = slot.grad;
  counted.count = slot.count;
  counted.stats_index = slot.stats_index;
  return counted;
}

// Which table a parameter belongs to.
struct TableKey {
  TensorTypes types;
  RuleKind rule;
  uint32_t part;
};
TableKey table_key(const StepPlan& plan, const StepParam& param) {
  if (param.stats_only) {
    TensorTypes types = {};
    types.grad = param.types.grad;
    return {types, RuleKind::Sgd, kNoPart};
  }
  const RuleKind rule = plan.groups[param.slot.group].settings.rule;
  return {param.types, rule, rule == RuleKind::Muon ? 0 : param.part};
}

// Whether Newton-Schulz of this matrix works on its Gram matrix.
bool is_on_gram(const MuonMatrix& matrix, const MuonSettings& muon) {
  return muon.on_gram && has_gram_shape(matrix.rows, matrix.columns);
}

MuonTypes muon_types(const StepParam& param, const MuonSettings& muon, const MuonMatrix& matrix) {
  const bool is_half = muon.type == ElementType::BF16 && is_on_gram(matrix, muon);
  return {param.types.grad, param.types.main, param.types.state[0], param.types.model,
          is_half ? ElementType::F16 : muon.type};
}

MuonMatrix matrix_of(const StepParam& param, const MuonSettings& muon, int64_t rows) {
  MuonMatrix m = {};
  m.grad = param.slot.grad;
  m.main = param.slot.main;
  m.remainder = param.slot.remainder;
  m.momentum = param.slot.state[0];
  m.model = param.slot.model;
  m.rows = rows;
  m.columns = param.columns;
  m.scale = static_cast<float>(muon.scale(rows, param.columns));
  m.extra_scale = static_cast<float>(muon.extra_scale);
  m.group = param.slot.group;
  return m;
}

// The matrices that a weight is orthogonalised as: one, or query, key and value.
std::vector<MuonMatrix> matrices_of(const StepParam& param, const MuonSettings& muon) {
  const uint32_t group_rows = param.qkv_rows[0] + param.qkv_rows[1] + param.qkv_rows[2];
  if (group_rows == 0) {
    MuonMatrix whole = matrix_of(param, muon, param.rows);
    whole.part_rows = whole.group_rows = static_cast<uint32_t>(param.rows);
    whole.is_aligned = is_aligned(whole) ? 1 : 0;
    return {whole};
  }
  std::vector<MuonMatrix> parts;
  uint32_t first_row = 0;
  for (const uint32_t part_rows : param.qkv_rows) {
    if (part_rows == 0) continue;
    MuonMatrix part = matrix_of(param, muon, param.rows / group_rows * part_rows);
    part.part_rows = part_rows;
    part.group_rows = group_rows;
    part.first_row = first_row;
    part.is_aligned = is_aligned(part) ? 1 : 0;
    first_row += part_rows;
    parts.push_back(part);
  }
  return parts;
}

// A matrix that looks for its batch.
struct NewMatrix {
  const MuonMatrix& matrix;
  MuonTypes types;
  const MuonSettings& settings;
  uint32_t part;
};

bool same_products(const MuonSettings& a, const MuonSettings& b) {
  const auto same = [](const NewtonSchulzCoefficients& x, const NewtonSchulzCoefficients& y) {
    return x.a == y.a && x.b == y.b && x.c == y.c;
  };
  return a.type == b.type && a.tf32 == b.tf32 && a.on_gram == b.on_gram &&
         a.mirrored_products == b.mirrored_products &&
         std::equal(a.coefficients.begin(), a.coefficients.end(), b.coefficients.begin(),
                    b.coefficients.end(), same);
}

// What is done to the numbers of one batch buffer decides what fits together: scales, momenta and
// rates are each matrix's and its group's.
bool fits_with(const MuonBatch& batch, const NewMatrix& added) {
  const auto key = [](const MuonTypes& t) {
    return std::make_tuple(t.grad, t.main, t.momentum, t.model, t.iterate);
  };
  return key(batch.types) == key(added.types) && batch.shape.rows == added.matrix.rows &&
         batch.shape.columns == added.matrix.columns &&
         same_products(*batch.settings, added.settings) && batch.part == added.part;
}

bool has_room(const MuonBatch& batch, uint64_t scratch_bytes_max) {
  const auto count = static_cast<uint64_t>(batch.shape.batch);
  const uint64_t bytes_each = batch.scratch_bytes() / count;
  return bytes_each <= scratch_bytes_max / (count + 1);
}

MuonBatch batch_for(const NewMatrix& added) {
  MuonBatch batch = {};
  batch.types = added.types;
  batch.shape = {.rows = added.matrix.rows,
                 .columns = added.matrix.columns,
                 .batch = 0,
                 .type = added.types.iterate,
                 .tf32 = added.settings.tf32,
                 .on_gram = is_on_gram(added.matrix, added.settings),
                 .allows_mirrored = added.settings.mirrored_products};
  batch.settings = &added.settings;
  batch.part = added.part;
  return batch;
}

double work_of(const MuonBatch& batch) {
  const auto rows = static_cast<double>(batch.shape.rows);
  const auto columns = static_cast<double>(batch.shape.columns);
  return rows * columns * std::min(rows, columns) * static_cast<double>(batch.shape.batch);
}

void deal_to_lanes(std::vector<MuonBatch>& batches) {
  std::map<uint32_t, std::array<double, kLanes>> work;  // by part
  for (MuonBatch& batch : batches) {
    auto& [main, side] = work[batch.part];
    const bool is_small = batch.scratch_bytes() <= kSideScratchMost;
    batch.lane = is_small && side < main ? 1 : 0;
    (batch.lane == 1 ? side : main) += work_of(batch);
  }
}

}  // namespace

TensorTable ParamTable::on_device(const DeviceMemory& memory) const {
  return {memory.at<TensorSlot>(slots_place), memory.at<Chunk>(chunks_place),
          static_cast<uint32_t>(slots.size()), static_cast<uint32_t>(chunks.size()), types};
}

uint64_t MuonBatch::iterate_bytes() const {
  return static_cast<uint64_t>(shape.rows * shape.columns * shape.batch * bytes_of(shape.type));
}

uint64_t MuonBatch::square_bytes() const {
  const int64_t edge = std::min(shape.rows, shape.columns);
  return static_cast<uint64_t>(edge * edge * shape.batch * bytes_of(shape.type));
}

uint64_t MuonBatch::scratch_bytes() const {
  return 2 * iterate_bytes() + (shape.on_gram ? 4 : 2) * square_bytes();
}

bool makes_sense(const StepPlan& plan) {
  return std::all_of(plan.params.begin(), plan.params.end(), [&](const StepParam& param) {
    const TensorSlot& slot = param.slot;
    if (slot.count < 0) return false;
    if (slot.stats_index != kNoStats && slot.stats_index >= plan.stats_count) return false;
    if (param.stats_only) return has_grad(param);
    if (slot.group >= plan.groups.size()) return false;
    if (param.part >= plan.part_count || !has_memory(param)) return false;
    const StepGroup& group = plan.groups[slot.group];
    return group.settings.rule == RuleKind::Muon ? muon_makes_sense(param, group.muon)
                                                 : can_update(param.types, group.settings.rule);
  });
}

std::vector<ParamTable> make_param_tables(const StepPlan& plan) {
  std::vector<ParamTable> tables;
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const StepParam& param = plan.params[i];
    const TableKey key = table_key(plan, param);
    auto table = std::find_if(tables.begin(), tables.end(), [&](const ParamTable& t) {
      return t.rule == key.rule && t.part == key.part && same(t.types, key.types);
    });
    if (table == tables.end()) {
      table = tables.emplace(tables.end());
      table->types = key.types;
      table->rule = key.rule;
      table->part = key.part;
    }
    table->params.push_back(i);
    table->slots.push_back(param.stats_only ? counted_slot(param.slot) : param.slot);
    table->slots.back().is_aligned = is_aligned(table->slots.back()) ? 1 : 0;
  }
  for (ParamTable& table : tables) {
    int64_t chunk_count = 0;
    for (const TensorSlot& slot : table.slots) chunk_count += chunks_of(slot.count);
    table.chunks.resize(static_cast<size_t>(chunk_count));
    fill_chunks(table.slots.data(), static_cast<uint32_t>(table.slots.size()), table.chunks.data());
  }
  return tables;
}

std::vector<MuonBatch> make_muon_batches(const StepPlan& plan) {
  std::vector<MuonBatch> batches;
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const StepParam& param = plan.params[i];
    if (param.stats_only) continue;
    const StepGroup& group = plan.groups[param.slot.group];
    if (group.settings.rule != RuleKind::Muon) continue;
    for (const MuonMatrix& matrix : matrices_of(param, group.muon)) {
      const NewMatrix added = {matrix, muon_types(param, group.muon, matrix), group.muon,
                               param.part};
      auto batch = std::find_if(batches.begin(), batches.end(), [&](const MuonBatch& b) {
        return fits_with(b, added) && has_room(b, plan.scratch_bytes_max);
      });
      if (batch == batches.end()) batch = batches.insert(batch, batch_for(added));
      batch->matrices.push_back(matrix);
      batch->params.push_back(i);
      batch->shape.batch += 1;
    }
  }
  for (MuonBatch& batch : batches) {
    const int64_t chunk_count = chunks_of(count_of(batch.matrices.front()));
    batch.chunks.resize(static_cast<size_t>(chunk_count * batch.shape.batch));
    fill_chunks(batch.matrices.data(), static_cast<uint32_t>(batch.matrices.size()),
                batch.chunks.data());
  }
  deal_to_lanes(batches);
  return batches;
}

}  // namespace kernels
