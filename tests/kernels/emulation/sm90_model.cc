// Barriers, tile loads and warpgroup products of Hopper, as the PTX ISA describes them.
#include "kernels/emulation/sm90_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "kernels/emulation/grid.h"
#include "kernels/emulation/narrow_floats.h"
#include "kernels/emulation/tensor_map.h"

namespace emulation {
namespace {

constexpr uint32_t kBase = 0x410;  // where dynamic shared memory begins: a multiple of 16 alone
constexpr uint32_t kLine = 128, kAtom = 1024;
constexpr unsigned char kPoison = 0xFF;  // bytes of a NaN
constexpr unsigned kWarpgroup = 128;
constexpr uint32_t kBytesMost = (1U << 20) - 1;  // that a phase counts

struct Barrier {
  uint32_t arrivals, pending;
  int64_t bytes = 0;  // expected and not there
  uint32_t phase = 0;
  bool is_visible = false;  // to the accelerator
};

// Products of one thread, and the sums that they are on their way to.
struct Pipeline {
  std::vector<Product> open;
  std::vector<std::vector<Product>> groups;  // committed, oldest first
  std::map<Sums*, Sums> values;              // of sums that are being added to
  bool is_fenced = false;
  size_t count = 0;
};

class Model final : public Engine {
 public:
  void begin_block() override;
  bool deliver() override;
  const char* end_block() override;

  char* at(uint32_t address, uint32_t bytes) {
    if (address < kBase || address - kBase + uint64_t{bytes} > bytes_) {
      fail_in_thread("an address outside of shared memory");
    }
    return memory_.get() + (address - kBase);
  }
  uint32_t address_of(const void* pointer) const {
    return kBase + static_cast<uint32_t>(static_cast<const char*>(pointer) - memory_.get());
  }
  Barrier& barrier(uint32_t address) {
    const auto found = barriers.find(address);
    if (found == barriers.end()) fail_in_thread("a barrier that was not initialised");
    return found->second;
  }
  void end_phase_if_done(Barrier& b) {
    if (b.pending != 0 || b.bytes != 0) return;
    b.phase += 1;
    b.pending = b.arrivals;
    note_change();
  }
  Pipeline& pipeline() {
    if (threadIdx.x >= pipelines_.size()) pipelines_.resize(threadIdx.x + 1);
    return pipelines_[threadIdx.x];
  }
  void check_same_in_warpgroup(const Product& product, size_t number);
  void set_bytes(uint64_t bytes) { bytes_ = bytes; }

  std::map<uint32_t, Barrier> barriers;
  std::vector<TileLoad> loads;  // on their way

 private:
  std::unique_ptr<char[]> memory_;
  uint64_t bytes_ = 0;
  std::vector<Pipeline> pipelines_;
  std::vector<std::vector<Product>> of_warpgroup_;
  size_t turn_ = 0;
};

Model& model() {
  static Model made;
  return made;
}

void Model::begin_block() {
  memory_.reset(new char[bytes_]);  // ends where shared memory ends
  std::memset(memory_.get(), kPoison, bytes_);
  barriers.clear();
  loads.clear();
  pipelines_.clear();
  of_warpgroup_.clear();
}

// What swizzling does to an address: bits 4 to 6, exchanged by bits 7 to 9.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Loads arrive in any order: here the oldest and the newest in turns.
bool Model::deliver() {
  if (loads.empty()) return false;
  const auto which = turn_++ % 2 == 0 ? loads.begin() : loads.end() - 1;
  const TileLoad load = *which;
  loads.erase(which);
  const TensorMap map = tensor_map_of(*load.map);
  uint32_t place = load.to;
  for (uint32_t y = 0; y < map.box[1]; ++y) {
    for (uint32_t x = 0; x < map.box[0]; ++x, place += 2) {
      const uint16_t bits = element_of(map, {load.from.x + static_cast<int64_t>(x),
                                             load.from.y + static_cast<int64_t>(y), load.from.z});
      std::memcpy(at(swizzled(place), 2), &bits, sizeof bits);
    }
  }
  Barrier& b = barriers.at(load.barrier);
  b.bytes -= box_bytes(map);
  end_phase_if_done(b);
  return true;
}

const char* Model::end_block() {
  if (!loads.empty()) return "a block ends while a load is on its way";
  for (const Pipeline& p : pipelines_) {
    if (!p.open.empty() || !p.groups.empty()) return "a thread ends before its products";
  }
  for (const auto& [address, b] : barriers) {
    if (b.bytes != 0) return "bytes are expected that do not come";
  }
  for (const auto& products : of_warpgroup_) {
    for (const Pipeline& p : pipelines_) {
      const auto group = static_cast<size_t>(&p - pipelines_.data()) / kWarpgroup;
      if (&products == &of_warpgroup_[group] && p.count != products.size()) {
        return "threads of a warpgroup queue different products";
      }
    }
  }
  return nullptr;
}

// An instruction is one for the whole warpgroup: all its threads must say the same.
void Model::check_same_in_warpgroup(const Product& product, size_t number) {
  const size_t group = threadIdx.x / kWarpgroup;
  if (of_warpgroup_.size() <= group) of_warpgroup_.resize(group + 1);
  std::vector<Product>& seen = of_warpgroup_[group];
  if (number == seen.size()) seen.push_back(product);
  const Product& first = seen[number];
  if (first.a != product.a || first.b != product.b || first.has_columns != product.has_columns ||
      first.accumulates != product.accumulates) {
    fail_in_thread("threads of a warpgroup queue different products");
  }
}

float value_at(uint64_t operand, bool has_columns, unsigned row, unsigned k) {
  uint16_t bits = 0;
  std::memcpy(&bits, model().at(operand_address(operand, has_columns, row, k), 2), sizeof bits);
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// This thread's part of a product, from what shared memory holds now.
void add_product(const Product& p, Sums& sums) {
  constexpr unsigned kDepth = 16;
  const unsigned thread = threadIdx.x % kWarpgroup;
  float rows[2][kDepth];
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned row = place_of_sum(thread, 2 * i).row;
    for (unsigned k = 0; k < kDepth; ++k) rows[i][k] = value_at(p.a, p.has_columns, row, k);
  }
  for (unsigned sum = 0; sum < kSumsPerThread; sum += sum % 2 == 0 ? 1 : 3) {  // row 0's
    float column[kDepth];
    const unsigned number = place_of_sum(thread, sum).column;
    for (unsigned k = 0; k < kDepth; ++k) column[k] = value_at(p.b, p.has_columns, number, k);
    for (unsigned i = 0; i < 2; ++i) {
      float& to = sums.at[sum + 2 * i];
      if (!p.accumulates) to = 0;
      for (unsigned k = 0; k < kDepth; ++k) to += rows[i][k] * column[k];
    }
  }
}

bool is_waited_for(const Pipeline& p, const Sums* sums) {
  const auto has = [&](const std::vector<Product>& products) {
    return std::any_of(products.begin(), products.end(),
                       [&](const Product& product) { return product.sums == sums; });
  };
  return has(p.open) || std::any_of(p.groups.begin(), p.groups.end(), has);
}

}  // namespace

void set_shared_bytes(uint64_t bytes) {
  model().set_bytes(bytes);
  set_engine(bytes == 0 ? nullptr : &model());
}
char* dynamic_shared() { return model().at(kBase, 0); }
uint32_t shared_address(const void* pointer) { return model().address_of(pointer); }

void barrier_init(uint32_t barrier, uint32_t arrivals) {
  model().at(barrier, sizeof(uint64_t));
  if (barrier % sizeof(uint64_t) != 0) fail_in_thread("a barrier is not aligned");
  if (!model().barriers.emplace(barrier, Barrier{arrivals, arrivals}).second) {
    fail_in_thread("a barrier is initialised twice");
  }
}

void barrier_init_fence() {
  for (auto& [address, b] : model().barriers) b.is_visible = true;
}

void barrier_arrive(uint32_t barrier, uint32_t expected_bytes) {
  Barrier& b = model().barrier(barrier);
  if (b.pending == 0) fail_in_thread("more arrivals at a barrier than were expected");
  b.bytes += expected_bytes;
  if (b.bytes > kBytesMost) fail_in_thread("more bytes than a barrier counts");
  b.pending -= 1;
  model().end_phase_if_done(b);
}

bool barrier_has_ended(uint32_t barrier, uint32_t parity) {
  return (model().barrier(barrier).phase & 1U) != parity;
}

void load_tile(const TileLoad& load) {
  const TensorMap map = tensor_map_of(*load.map);
  if (!model().barrier(load.barrier).is_visible) fail_in_thread("a barrier without its fence");
  if (!map.is_swizzled || load.to % kLine != 0)
    fail_in_thread("a tile is not placed as it must be");
  const auto bytes = static_cast<uint32_t>(box_bytes(map));
  std::memset(model().at(load.to, bytes), kPoison, bytes);
  model().loads.push_back(load);
}

// In units of 16 bytes (T elements of bf16 are 8) PTX has for the swizzle of 128 bytes: rows
// contiguous ((8,m),(T,2)):((8T,SBO),(1,T)), columns contiguous
// ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)).
uint32_t operand_address(uint64_t operand, bool has_columns, unsigned row, unsigned k) {
  const auto field = [&](unsigned shift) {
    return static_cast<uint32_t>(operand >> shift & 0x3FFF) << 4;
  };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  if (operand >> 62 != 1 || (operand >> 46 & 0xFFFF) != 0) fail_in_thread("not such an operand");
  // Its base offset is 0: the pattern begins at a multiple of 1024 bytes, and `start` lies in its
  // first line.
  if (start % kAtom >= kLine) fail_in_thread("an operand begins in the middle of its pattern");
  if (has_columns) {
    return swizzled(start + row / 64 * leading + k / 8 * stride + k % 8 * kLine + row % 64 * 2);
  }
  return swizzled(start + row / 8 * stride + row % 8 * kLine + k * 2);
}

SumPlace place_of_sum(unsigned thread, unsigned sum) {
  const unsigned warp = thread / 32, lane = thread % 32;
  return {16 * warp + lane / 4 + sum / 2 % 2 * 8, sum / 4 * 8 + lane % 4 * 2 + sum % 2};
}

void products_fence() { model().pipeline().is_fenced = true; }

void multiply(const Product& product) {
  Pipeline& p = model().pipeline();
  if (!p.is_fenced) fail_in_thread("a product without a fence");
  model().check_same_in_warpgroup(product, p.count++);
  if (p.values.try_emplace(product.sums, *product.sums).second) {
    std::fill_n(product.sums->at, kSumsPerThread, std::numeric_limits<float>::quiet_NaN());
  }
  p.open.push_back(product);
}

void products_commit() {
  Pipeline& p = model().pipeline();
  p.groups.push_back(std::move(p.open));
  p.open.clear();
}

void products_wait(unsigned pending, const std::source_location& place) {
  Pipeline& p = model().pipeline();
  while (p.groups.size() > pending) {
    for (const Product& product : p.groups.front()) {
      add_product(product, p.values.at(product.sums));
    }
    p.groups.erase(p.groups.begin());
  }
  for (auto value = p.values.begin(); value != p.values.end();) {
    if (is_waited_for(p, value->first)) {
      ++value;
      continue;
    }
    *value->first = value->second;  // they may be read now
    value = p.values.erase(value);
    p.is_fenced = false;
  }
  show_to_warp(0, place);
}

}  // namespace emulation
