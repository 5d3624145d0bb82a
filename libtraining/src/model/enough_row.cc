#include "model/enough_row.h"

#include <optional>

#include <ckpt/error.h>

#include "model/stage_names.h"

namespace optim {
namespace {

struct PartAndName {
  std::string_view part;
  std::string name;
};

// Where nothing says whether it comes before the layers or behind them: PART.
PartAndName part_of(std::string_view whole) {
  const std::string_view name = without_submodel(whole);
  if (const auto in_mtp = split_mtp_layer(name)) return {"mtp", std::string(in_mtp->rest)};
  if (const auto in_stack = split_stack(name)) return {"layer", std::string(in_stack->rest)};
  if (name.starts_with("vision_")) return {"vision", std::string(name)};
  if (name.starts_with("embedding.")) return {"embedding", std::string(name)};
  if (name.starts_with("output_layer.")) return {"output", std::string(name)};
  return {"PART", std::string(name)};
}

std::string_view split_in_words(const TensorSharing& sharing) {
  if (!sharing.is_known) return "SPLIT";
  if (!sharing.split) return name(SplitKind::Replicated);
  if (sharing.split->dim != 0) return name(SplitKind::Columns);
  return name(sharing.split->sections.size() == 2 ? SplitKind::GatedRows : SplitKind::Rows);
}

std::string with_placeholder(std::string name) {
  if (const auto expert = expert_in(name)) {
    name.replace(expert->begin, expert->end - expert->begin, "{expert}");
  }
  return name;
}

std::string segments_of(const ModelRule& rule) {
  std::string text;
  for (const RowSegment& segment : rule.segments) {
    const std::string rows = segment.count ? std::to_string(*segment.count) : "ROWS";
    text += text.empty() ? "" : ", ";
    text.append("{\"name\": \"")
        .append(ckpt::escaped(segment.name))
        .append("\", \"rows\": \"" + rows + "\"}");
  }
  return "segments\", \"segments\": [" + text + "]";
}

}  // namespace

std::string enough_row(std::string_view name, const TensorSharing& sharing,
                       const ModelRules& rules) {
  PartAndName row = part_of(name);
  const ModelRule* const segmented = rules.find_segmented(name);
  const std::string split =
      segmented ? segments_of(*segmented) : std::string(split_in_words(sharing)) + "\"";
  std::string text = "a row of --model-rules for it: {\"part\": \"" + std::string(row.part) +
                     "\", \"name\": \"" + ckpt::escaped(with_placeholder(std::move(row.name))) +
                     "\", \"split\": \"" + split + "}";
  if (row.part == "PART") text += "; PART is embedding, final (behind the layers) or output";
  if (split.starts_with("SPLIT")) {
    text += "; SPLIT is replicated, rows, columns or, of gate and up, gated_rows";
  }
  if (split.find("ROWS") != split.npos) text += "; ROWS are a segment's in the whole model";
  return text;
}

}  // namespace optim
