#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/printed.h>

namespace tools {

std::string size_text(uint64_t count_bytes);  // "512 B", "1.5 KiB", "2.0 GiB"
std::string amount_text(uint64_t count);      // "512", "9.2 K", "671.0 B"

// A number of things: "1 tensor", "3 tensors".
std::string count_text(uint64_t count, std::string_view thing);

// The shortest digits that read back as this double; "nan", "inf", "-inf".
std::string number_text(double value);
std::string short_number_text(double value);  // four digits

// What stands between the separators; one text where there is none.
std::vector<std::string_view> split(std::string_view text, std::string_view separator);

using ckpt::joined;

// Wrong usage: throws Error(InvalidArgument).
[[noreturn]] void refuse_usage(const std::string& problem, const std::string& hint = {});

// Columns that UTF-8 text takes on a terminal: East Asian characters and emoji two, the escape
// sequences of colours none.
size_t display_width(std::string_view utf8);

// At most `width_max` columns; what was cut off is shown as "...".
std::string shortened(std::string_view utf8, size_t width_max);

// At most `width_max` columns: `ellipsis` stands for what is left out of the middle. Neither a
// character nor an escape of ckpt::escaped() is cut in two; blanks in front (a tree's indentation)
// stay.
std::string shortened_in_middle(std::string_view utf8, size_t width_max, std::string_view ellipsis);

// `text` broken at blanks into lines of at most `width` columns, all but the first with `indent`
// blanks in front. A longer word is left whole: a terminal breaks a path so that it can be copied.
std::string wrapped(std::string_view text, size_t width, size_t indent = 2);

// The word of `known` that `word` is most likely a mistake for: ckpt::nearest(), or the only word
// that begins with it.
std::optional<std::string> nearest_word(std::string_view word,
                                        const std::vector<std::string>& known);

// As one word of a shell, quoted where it has to be; of bash where it has quotes, backslashes or
// what is not printed.
std::string shell_word(std::string_view text);

// "; did you mean 'WORD'?" escaped, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace tools
