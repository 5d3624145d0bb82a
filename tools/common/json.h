#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tools {

class Console;

// A name from a file as JSON can hold it: unchanged if it is UTF-8, else escaped like in the text
// output.
std::string json_text(std::string_view name);

// A JSON text with the characters in its strings that a terminal may obey or hide (DEL, C1, what
// ckpt::escaped() escapes) as \uXXXX. Its meaning is the same.
std::string printable_json(std::string_view json);

inline constexpr uint64_t kJsonSchemaVersion = 1;  // of documents that have not changed since

// {"schema_version": 1}: what every document starts from. Keys come out sorted.
nlohmann::json json_document(uint64_t schema_version = kJsonSchemaVersion);

// The document and a line end on stdout.
void print_json(Console& console, const nlohmann::json& document);

}  // namespace tools
