#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// How the files of the one model-parallel rank of a LayerWise `torch` folder are called.
namespace optim {

inline constexpr std::string_view kRankFolder = "mp_rank_00/";
inline constexpr std::string_view kModelFile = "mp_rank_00/model_optim_rng.pt";
inline constexpr std::string_view kRankFilePrefix = "mp_rank_00/layer_wise_optimizer_";

inline std::string rank_file(uint32_t rank) {
  return std::string(kRankFilePrefix) + std::to_string(rank) + ".pt";
}

// "mp_rank_00/layer_wise_optimizer_7.pt" -> 7.
inline std::optional<uint32_t> rank_of(std::string_view path) {
  if (!path.starts_with(kRankFilePrefix) || !path.ends_with(".pt")) return std::nullopt;
  const std::string_view digits =
      path.substr(kRankFilePrefix.size(), path.size() - kRankFilePrefix.size() - 3);
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return rank;
}

}  // namespace optim
