#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include <ckpt/target.h>

// What lies beside the weights in a Hugging Face folder.
namespace optim {

inline constexpr std::string_view kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer_config.json",   "tokenizer.model", "added_tokens.json",
    "vocab.json",        "special_tokens_map.json", "merges.txt",      "chat_template.jinja",
    "chat_template.json"};
inline constexpr std::string_view kModelFiles[] = {
    "config.json",           "generation_config.json",         "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json", "README.md"};
std::vector<std::string_view> model_and_tokenizer_files();
// Where verl has them, beside files of ranks and shards of Megatron.
inline constexpr std::string_view kFolderOfVerl = "huggingface";

inline constexpr uint64_t kModelFilesBytesMax = 256 << 20;  // they are held in memory

// Copies of those of these files that a folder has. Throws as ckpt::read_named_file().
std::vector<ckpt::TargetFile> copies_in(const std::filesystem::path& folder,
                                        std::span<const std::string_view> names);
// Throws NotFound where there is none.
std::vector<ckpt::TargetFile> copies_of_tokenizer(const std::filesystem::path& folder);

}  // namespace optim
