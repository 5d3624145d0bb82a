// What an object store answers, as XML: from somebody else, so strict and small.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt {

// An element: text, or others in it.
struct XmlNode {
  std::string name;
  std::string text;  // without that of what is in it
  std::vector<XmlNode> children;

  std::string_view text_of(std::string_view name) const;  // of a child; empty without it
};

// Elements, text and the five entities; attributes are passed over. Comments, CDATA, a DOCTYPE,
// more than a few levels and more than a listing needs are refused. Throws Corrupt.
XmlNode parse_xml(std::string_view text);

struct ListedObject {
  std::string key;  // whole
  uint64_t count_bytes = 0;
  std::string etag;
  int64_t modified_ns = 0;
};

// A page of ListObjectsV2.
struct ObjectList {
  std::vector<ListedObject> objects;
  std::vector<std::string> prefixes;  // folders: whole, with the slash at the end
  std::string next_token;             // empty: the last page
};

// Throws Corrupt where the answer is not one to a request with this prefix.
ObjectList parse_object_list(std::string_view text, std::string_view prefix);

// An object whose parts are being sent: nobody sees it.
struct ListedUpload {
  std::string key, id;
};
// A page of ListMultipartUploads.
struct UploadList {
  std::vector<ListedUpload> uploads;
  std::string next_key, next_id;  // empty: the last page
};
UploadList parse_upload_list(std::string_view text, std::string_view prefix);

// A part as the store says that it has it.
struct S3Part {
  uint64_t count_bytes = 0;
  std::string etag;
  std::string sha256;  // base64; empty where the store keeps none
};
// A page of ListParts.
struct PartList {
  std::vector<std::pair<uint32_t, S3Part>> parts;  // by number
  bool has_checksums = false;
  std::string next_number;  // empty: the last page
};
PartList parse_part_list(std::string_view text);

// The text of one element of an answer that must be a `root`, of plain characters.
std::string parse_answer(std::string_view text, std::string_view root, std::string_view element);

// <Error><Code>: "NoSuchBucket"; empty where the text says none.
std::string s3_error_code(std::string_view text);

// "2026-11-28T14:05:35.578Z" since 1970; nullopt where it is something else.
std::optional<int64_t> iso_time_ns(std::string_view text);

}  // namespace ckpt
