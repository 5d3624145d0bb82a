#include "huggingface/table_walk.h"

#include <string_view>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/printed.h>

#include "huggingface/viewed_tensor.h"
#include "model/expression.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char *kLayer = "{layer}", *kExpert = "{expert}", *kFurther = "{mtp}";

std::string replaced(std::string text, std::string_view part, const std::string& other) {
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + other.size())) {
    text.replace(at, part.size(), other);
  }
  return text;
}

// What marks in names stand for; `further`: of a layer behind those of the decoder.
struct Numbers {
  std::optional<uint32_t> layer = {}, further = {};
  uint32_t expert = 0;
};

std::string with_numbers(std::string text, const Numbers& numbers) {
  text = replaced(std::move(text), kLayer, std::to_string(numbers.layer.value_or(0)));
  text = replaced(std::move(text), kFurther, std::to_string(numbers.further.value_or(0)));
  return replaced(std::move(text), kExpert, std::to_string(numbers.expert));
}

bool is_further(const TensorRow& row) {
  return row.parts[0].from[0].find(kFurther) != std::string::npos;
}
bool is_of_layer(const TensorRow& row) {
  return row.target.find(kLayer) != std::string::npos || is_further(row);
}

class Walk {
 public:
  Walk(const NameTable& table, const NameScope& scope,
       const std::function<void(TableTensor)>& visit)
      : table_(table), scope_(scope), visit_(visit) {}

  void run() const {
    const uint64_t layers = scope_.size("num_layers");
    const uint64_t all = layers + scope_.size(table_.further.count);
    for (const TensorRow& row : table_.tensors) {
      if (!is_of_layer(row)) add(row, {});
    }
    for (uint32_t layer = 0; layer < all; ++layer) {
      std::optional<uint32_t> further;
      if (layer >= layers) further = static_cast<uint32_t>(layer - layers);
      for (const TensorRow& row : table_.tensors) {
        if (is_of_layer(row) && (!is_further(row) || further)) add(row, {layer, further});
      }
    }
  }

 private:
  void add(const TensorRow& row, Numbers numbers) const {
    if (!is_truthy(scope_.value(row.when, numbers.layer))) return;
    const bool has_experts = row.parts[0].from[0].find(kExpert) != std::string::npos;
    const bool is_stacked = has_experts && row.target.find(kExpert) == row.target.npos;
    const uint64_t experts = has_experts ? scope_.size("num_experts") : 1;
    TableTensor tensor{{}, &row};
    for (numbers.expert = 0; numbers.expert < experts; ++numbers.expert) {
      for (size_t i = 0; i < row.parts.size(); ++i) {
        tensor.parts.push_back({names_of(row.parts[i], numbers), numbers.expert, i});
      }
      if (is_stacked && numbers.expert + 1 < experts) continue;
      tensor.key = with_numbers(row.target, numbers);
      tensor.added = sum_of(row, numbers);
      visit_(std::exchange(tensor, {{}, &row}));
    }
  }

  float sum_of(const TensorRow& row, const Numbers& numbers) const {
    if (row.add.empty()) return 0;
    const nlohmann::json added = scope_.value(row.add, numbers.layer);
    if (added.is_number()) return added.get<float>();
    throw Error(ErrorCode::Unsupported, {.file = table_.name, .key = row.target},
                "'add' is not a number: " + added.dump());
  }

  std::vector<std::string> names_of(const RowPart& part, const Numbers& numbers) const {
    std::vector<std::string> names;
    for (const std::string& from : part.from) {
      std::vector<std::string> written = {from};
      if (numbers.further) {
        for (const auto& [name, others] : table_.further.names) {
          if (from.find(name) == from.npos) continue;
          written.clear();
          for (const std::string& other : others) written.push_back(replaced(from, name, other));
        }
      }
      for (std::string& name : written) names.push_back(with_numbers(std::move(name), numbers));
    }
    return names;
  }

  const NameTable& table_;
  const NameScope& scope_;
  const std::function<void(TableTensor)>& visit_;
};

// Indices of one dimension of the model's tensor that follow each other with one stride in the
// folder's.
struct StridedRun {
  uint64_t first = 0, count = 1;    // in the model's
  uint64_t offset = 0, stride = 1;  // of elements in the folder's
};

// A dimension, whose axes are axes[begin] to axes[begin + count - 1] of the model's tensor.
std::vector<StridedRun> runs_of(const SourceAxes& axes, const Extents& strides, size_t begin,
                                size_t count) {
  std::vector<StridedRun> runs = {StridedRun{}};
  uint64_t inner = 1;  // elements below the axis, of the whole dimension
  for (size_t axis = begin + count; axis-- > begin;) {
    const StridedRun& last = runs.front();
    const bool is_whole = runs.size() == 1 && last.first == 0 && last.count == inner;
    const bool follows =
        inner == 1 || axes.count[axis] == 1 || strides[axis] == last.stride * inner;
    if (is_whole && follows) {
      if (inner == 1) runs[0].stride = strides[axis];
      runs[0].first = axes.first[axis] * inner;
      runs[0].count = axes.count[axis] * inner;
    } else {
      std::vector<StridedRun> more;
      for (uint64_t i = 0; i < axes.count[axis]; ++i) {
        for (StridedRun run : runs) {
          run.first += (axes.first[axis] + i) * inner;
          run.offset += i * strides[axis];
          more.push_back(run);
        }
      }
      runs = std::move(more);
    }
    inner *= axes.sizes[axis];
  }
  return runs;
}

// Strides in the folder's storage of the axes of the model's tensor, and where its first element
// is.
struct Place {
  uint64_t offset = 0;
  Extents strides;
};

// By axes of the folder's tensor.
Extents stored_strides(const Chunk& chunk, const TargetAxes& target, const Extents& sizes) {
  const Extents of_dims =
      chunk.view ? chunk.view->strides : ckpt::row_major_strides(chunk.box.sizes);
  Extents strides;
  auto size = sizes.begin();
  for (size_t dim = 0; dim < target.of_dim.size(); ++dim) {
    const Extents inside(size, size + static_cast<ptrdiff_t>(target.of_dim[dim]));
    for (const uint64_t stride : ckpt::row_major_strides(inside)) {
      strides.push_back(stride * of_dims[dim]);
    }
    size += static_cast<ptrdiff_t>(target.of_dim[dim]);
  }
  return strides;
}

// Of part `number` of a row, those of all experts one behind the other.
Place place_of(const Chunk& chunk, const Joined& joined, size_t number) {
  const size_t count = joined.sources.size();
  const SourceAxes& axes = joined.sources[number % count];
  const TargetAxes& target = joined.targets[number % count];
  const Extents& sizes = joined.sizes;
  const Extents strides = stored_strides(chunk, target, sizes);
  Place place{chunk.view ? chunk.view->offset : 0, Extents(axes.sizes.size(), 1)};
  for (size_t i = 0; i < target.sources.size(); ++i) {
    place.offset += target.first[i] * strides[i];
    if (target.sources[i] < axes.sizes.size()) place.strides[target.sources[i]] = strides[i];
    if (target.sources[i] == TargetAxes::kOfExperts) place.offset += number / count * strides[i];
  }
  return place;
}

// A box of the model's tensor for each way to take one run of each dimension.
std::vector<Chunk> chunks_of(const TensorEntry& found, const SourceAxes& axes, const Place& place) {
  const Chunk& whole = found.chunks[0];
  std::vector<std::pair<Box, ckpt::StridedView>> made(1);
  made[0].second.offset = place.offset;
  size_t axis = 0;
  for (size_t dim = 0; dim < axes.of_dim.size(); ++dim) {
    const std::vector<StridedRun> runs =
        runs_of(axes, place.strides, axis, axes.of_dim[dim].size());
    axis += axes.of_dim[dim].size();
    std::vector<std::pair<Box, ckpt::StridedView>> longer;
    for (const auto& [box, view] : made) {
      for (const StridedRun& run : runs) {
        auto& [next, strided] = longer.emplace_back(box, view);
        next.offsets.push_back(run.first + (dim == 0 ? axes.first_row : 0));
        next.sizes.push_back(run.count);
        strided.offset += run.offset;
        strided.strides.push_back(run.stride);
      }
    }
    made = std::move(longer);
  }
  std::vector<Chunk> chunks;
  for (auto& [box, view] : made) {
    Chunk chunk{std::move(box), whole.region, whole.payload_offset_bytes};
    const bool is_plain = view.strides == ckpt::row_major_strides(chunk.box.sizes);
    if (is_plain) {
      chunk.payload_offset_bytes += view.offset * ckpt::bytes_per_element(ckpt::stored_type(found));
    } else {
      chunk.view = std::make_shared<const ckpt::StridedView>(std::move(view));
    }
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

}  // namespace

void for_each_tensor(const NameTable& table, const NameScope& scope,
                     const std::function<void(TableTensor)>& visit) {
  Walk(table, scope, visit).run();
}

const std::pair<const std::string, std::string>* first_unmet(
    const std::map<std::string, std::string>& conditions, const NameScope& scope) {
  for (const auto& condition : conditions) {
    if (!is_truthy(scope.value(condition.second))) return &condition;
  }
  return nullptr;
}

void require_conditions(const NameTable& table, const NameScope& scope, const std::string& who) {
  const auto* const unmet = first_unmet(table.needed, scope);
  if (unmet == nullptr) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = who},
              "do not fit " + table.name + ", " + unmet->first + ": " + unmet->second + ", found " +
                  scope.arguments_of(unmet->second));
}

std::vector<GivenPart> parts_of(const GivenTensor& given, const NameScope& scope,
                                const std::vector<size_t>& parts) {
  const auto& [found, row] = given;
  const size_t count = row.parts.size();
  const Joined joined = join_parts(row, scope, parts.size() / count);
  if (found.shape != joined.shape) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = found.key},
                "has the shape " + ckpt::shape_text(found.shape) + ", by config.json it has " +
                    ckpt::shape_text(joined.shape));
  }
  std::vector<GivenPart> made;
  for (size_t i = 0; i < parts.size(); ++i) {
    const SourceAxes& axes = joined.sources[i % count];
    made.push_back({parts[i], shape_of(axes), {}});
    if (found.chunks.empty()) continue;
    const Place place = place_of(found.chunks[0], joined, i);
    made.back().chunks = chunks_of(found, axes, place);
  }
  return made;
}

}  // namespace optim
