#include "inspect/part_text.h"

#include <ostream>

#include <common/json.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

std::vector<std::string> lines_of(const optim::OpenedTraining& checkpoint,
                                  const optim::RankParts& parts) {
  std::vector<std::string> lines = parts.lines();
  if (const auto file = optim::file_of_set(checkpoint)) {
    lines.push_back("this file is " + text_of(*file));
  }
  return lines;
}

}  // namespace

std::string shape_text_of(const ckpt::Extents& shape, const ckpt::TensorPart* part) {
  const std::string text = shape_text(shape);
  if (part == nullptr || part->is_whole) return text;
  if (!part->shape) return text + ", a part";
  return text + " of " + shape_text(*part->shape);
}

nlohmann::json to_json(const ckpt::TensorPart& part) {
  nlohmann::json json = {{"text", json_text(part.words)}, {"whole", part.is_whole}};
  if (part.shape) json["shape"] = *part.shape;
  return json;
}

nlohmann::json to_json(const optim::FileOfSet& file) {
  nlohmann::json json = {{"text", text_of(file)},
                         {"present", nlohmann::json::array()},
                         {"missing", nlohmann::json::array()}};
  if (!file.framework.empty()) json["framework"] = file.framework;
  if (file.count) json.update({{"number", file.number}, {"count", *file.count}});
  for (const std::string& name : file.present) json["present"].push_back(json_text(name));
  for (const std::string& name : file.missing) json["missing"].push_back(json_text(name));
  return json;
}

void print_parts(Console& console, const optim::OpenedTraining& checkpoint,
                 const optim::RankParts& parts) {
  if (console.options().quiet) return;
  for (const std::string& line : lines_of(checkpoint, parts)) console.print_text(line);
}

void note_parts(Console& console, const optim::OpenedTraining& checkpoint) {
  for (const std::string& line : lines_of(checkpoint, optim::RankParts(checkpoint))) {
    console.note(line);
  }
}

}  // namespace tools::inspect
