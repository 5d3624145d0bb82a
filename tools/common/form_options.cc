// Options for the form of optimizer state, in Megatron's words.
#include <common/form_options.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <common/option_values.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

constexpr const char* kGroup = "Form of the optimizer's state (not given: as the source's)";

using Size = optim::BucketChange::Size;

// Megatron's options have hyphens, its values underscores.
std::string with_underscores(std::string text) {
  for (char& each : text) each = each == '-' ? '_' : each;
  return text;
}

void add_sharding(CLI::App& app, optim::FilingChange& form) {
  std::vector<std::pair<std::string, const optim::Filing*>> choices;
  for (const optim::Filing* const filing : optim::filings()) {
    if (filing->is_written && filing != &optim::kWhole) choices.emplace_back(filing->name, filing);
  }
  CLI::Option* const option = add_choice(app, "--optimizer-sharding", form.filing, choices);
  option->transform(CLI::Validator(
      [](std::string& text) {
        text = with_underscores(text);
        return std::string();
      },
      ""));
  option
      ->description(
          "torch_dist: fully_reshardable or dp_reshardable (ZeRO-1), layer_wise; torch: flat_file "
          "(ZeRO-1), layer_wise")
      ->option_text("FORM")
      ->group(kGroup);
}

// 0.16 or 0.16.N
bool is_release(const std::string& text, std::string_view release) {
  if (release.empty() || !text.starts_with(release)) return false;
  if (text == release) return true;
  const std::string rest = text[release.size()] == '.' ? text.substr(release.size() + 1) : "";
  return !rest.empty() && rest.size() < 4 &&
         rest.find_first_not_of("0123456789") == std::string::npos;
}

const optim::Release* release_of(const std::string& text) {
  const auto files_so = [&](const optim::Release* one) {
    return text == one->name || is_release(text, one->cores[0]) || is_release(text, one->cores[1]);
  };
  const auto found = std::ranges::find_if(optim::releases(), files_so);
  return found == optim::releases().end() ? nullptr : *found;
}

std::string refusal_of(const std::string& text) {
  const std::string what = "'" + ckpt::escaped(text) + "' ";
  if (is_release(text, "0.15")) {
    return what +
           "does not load args of later Megatrons; it reads the layout 2026-04 of older ones";
  }
  return what + "is not 2026-04, 2026-08 or a release from 0.16 to 0.19 (docs/compatibility.md)";
}

void add_target_megatron(CLI::App& app, optim::FilingChange& form) {
  const CLI::Validator is_known(
      [](std::string& text) {
        return release_of(text) != nullptr ? std::string() : refusal_of(text);
      },
      "");
  app.add_option_function<std::string>(
         "--target-megatron", [&form](const std::string& text) { form.release = release_of(text); },
         "torch_dist: as Megatron of April or August 2026 lays it out, or a release of "
         "Megatron-Core")
      ->check(is_known)
      ->option_text("2026-04|2026-08|RELEASE")
      ->group(kGroup);
}

void add_bucket_size(CLI::App& app, optim::BucketChange& buckets) {
  const auto choose = [&buckets](const std::string& text) {
    if (text == "none" || text == "default") {
      buckets.size = text == "none" ? Size::One : Size::Default;
      return;
    }
    buckets.size = Size::Given;
    buckets.element_count = std::stoull(text);
  };
  const CLI::Validator is_size(
      [](std::string& text) {
        if (text == "none" || text == "default" || kSize(text).empty()) return std::string();
        return "'" + ckpt::escaped(text) + "' is not a number of elements, 'none' or 'default'";
      },
      "");
  app.add_option_function<std::string>("--bucket-size,--ddp-bucket-size", choose,
                                       "Elements of a bucket of flat buffers; none: one bucket; "
                                       "default: Megatron's with --overlap-grad-reduce")
      ->check(is_size)
      ->option_text("N|none|default")
      ->group(kGroup);
}

// NAME=TYPE, of torch's types with or without "torch.".
std::optional<optim::StateType> state_type(const std::string& text) {
  const size_t at = text.find('=');
  if (at == 0 || at == std::string::npos) return std::nullopt;
  std::string type = text.substr(at + 1);
  if (type.starts_with("torch.")) type = type.substr(6);
  const auto dtype = ckpt::dtype_named(type);
  if (!dtype) return std::nullopt;
  return optim::StateType{text.substr(0, at), *dtype};
}

void add_state_types(CLI::App& app, std::vector<optim::StateType>& types) {
  const CLI::Validator is_type(
      [](std::string& text) {
        return state_type(text)
                   ? std::string()
                   : "'" + ckpt::escaped(text) + "' is not NAME=TYPE, such as exp_avg=float32";
      },
      "");
  const auto add = [&types](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) types.push_back(*state_type(text));
  };
  app.add_option_function<std::vector<std::string>>(
         "--state-dtype", add,
         "Another type for an optimizer state: float32, bfloat16 or float16; repeatable")
      ->check(is_type)
      ->allow_extra_args(false)
      ->option_text("NAME=TYPE")
      ->group(kGroup);
}

}  // namespace

void FormOptions::declare(CLI::App& app) {
  add_sharding(app, form);
  add_target_megatron(app, form);
  add_bucket_size(app, form.buckets);
  app.add_flag("--pad-buckets,--ddp-pad-buckets-for-high-nccl-busbw",
               form.buckets.pad_for_high_nccl_busbw,
               "Pad buckets to multiples of 65536 elements, too")
      ->group(kGroup);
  add_state_types(app, form.state_types);
}

}  // namespace tools
