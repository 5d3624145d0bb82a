#include "parallel/pipeline_layout.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <ckpt/error.h>

namespace optim {
namespace {

constexpr size_t kTextMax = size_t{1} << 20;

[[noreturn]] void refuse_layout(std::string_view text, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}},
                    "the pipeline layout '" + std::string(text.substr(0, 200)) + "' " + problem);
}

struct Repeat {
  uint64_t count = 0;
  size_t end = 0;  // behind the number
};

// "*N" at `at`.
std::optional<Repeat> repeat_at(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '*') return std::nullopt;
  uint64_t count = 0;
  const char* const first = text.data() + at + 1;
  const auto [end, error] = std::from_chars(first, text.data() + text.size(), count);
  if (error != std::errc() || end == first) return std::nullopt;
  return Repeat{count, static_cast<size_t>(end - text.data())};
}

void append(std::string& unrolled, std::string_view part, uint64_t count, std::string_view whole) {
  if (!part.empty() && count > (kTextMax - unrolled.size()) / part.size()) {
    refuse_layout(whole, "has more than 2^20 layers and stages");
  }
  for (uint64_t i = 0; i < count; ++i) unrolled += part;
}

std::string without_commas(std::string_view text) {
  std::string rest;
  for (const char c : text) {
    if (c != ',') rest += c;
  }
  return rest;
}

// (text)*n; parentheses of another kind stay, and are refused as unknown characters.
std::string unroll_groups(std::string_view text) {
  std::string unrolled;
  for (size_t at = 0; at < text.size();) {
    const size_t close = text[at] == '(' ? text.find(')', at) : text.npos;
    const auto repeat = close == text.npos ? std::nullopt : repeat_at(text, close + 1);
    const std::string_view inside =
        repeat ? text.substr(at + 1, close - at - 1) : text.substr(at, 1);
    append(unrolled, inside, repeat ? repeat->count : 1, text);
    at = repeat ? repeat->end : at + 1;
  }
  return unrolled;
}

std::string unroll_characters(std::string_view text) {
  std::string unrolled;
  for (size_t at = 0; at < text.size();) {
    const auto repeat = repeat_at(text, at + 1);
    append(unrolled, text.substr(at, 1), repeat ? repeat->count : 1, text);
    at = repeat ? repeat->end : at + 1;
  }
  return unrolled;
}

std::vector<StageLayers> read_stages(std::string_view unrolled, std::string_view text) {
  std::vector<StageLayers> stages(1);
  bool in_mtp = false;
  for (const char c : unrolled) {
    StageLayers& stage = stages.back();
    if (c == 't' && in_mtp) refuse_layout(text, "has a decoder layer (t) behind an MTP layer (m)");
    in_mtp = in_mtp || c == 'm';
    switch (c) {
      case 'E': ++stage.embeddings; break;
      case 't': ++stage.decoder_layers; break;
      case 'm': ++stage.mtp_layers; break;
      case 'L': ++stage.losses; break;
      case '|': stages.emplace_back(); break;
      default:
        refuse_layout(text, "has a character other than E, t, m, L, |, ',' and repeats (...)*N");
    }
  }
  return stages;
}

void check_ends(std::string_view unrolled, std::string_view text) {
  if (!unrolled.starts_with('E') || std::ranges::count(unrolled, 'E') != 1) {
    refuse_layout(text, "must begin with its only embedding (E)");
  }
  if (!unrolled.ends_with('L') || std::ranges::count(unrolled, 'L') != 1) {
    refuse_layout(text, "must end with its only loss (L)");
  }
}

}  // namespace

std::vector<StageLayers> parse_pipeline_layout(std::string_view text) {
  if (text.size() > kTextMax) refuse_layout(text, "is longer than 2^20 characters");
  const std::string unrolled = unroll_characters(unroll_groups(without_commas(text)));
  std::vector<StageLayers> stages = read_stages(unrolled, text);
  check_ends(unrolled, text);
  return stages;
}

std::string pipeline_layout_text(const std::vector<StageLayers>& stages) {
  std::string text;
  for (const StageLayers& stage : stages) {
    if (&stage != &stages.front()) text += '|';
    text.append(stage.embeddings, 'E').append(stage.decoder_layers, 't');
    text.append(stage.mtp_layers, 'm').append(stage.losses, 'L');
  }
  return text;
}

}  // namespace optim
