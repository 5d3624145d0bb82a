#include "remote/s3_reply.h"

#include <algorithm>
#include <chrono>

#include <ckpt/error.h>

#include "base/text.h"

namespace ckpt {
namespace {

constexpr size_t kDepthMax = 8, kNodesMax = 50'000, kKeyBytesMax = 1024;
constexpr std::string_view kSpaces = " \t\r\n";

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, "the store's answer is malformed: " + problem);
}

class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  XmlNode read() {
    if (text_.starts_with("\xEF\xBB\xBF")) skip(3);
    skip_spaces();
    if (left().starts_with("<?xml")) skip(until("?>") + 2);
    skip_spaces();
    XmlNode root = read_element(1);
    skip_spaces();
    if (!left().empty()) refuse("text behind its end");
    return root;
  }

 private:
  std::string_view left() const { return text_.substr(position_); }
  void skip(size_t count) { position_ += count; }
  void skip_spaces() {
    position_ = std::min(text_.find_first_not_of(kSpaces, position_), text_.size());
  }
  size_t until(std::string_view what) const {
    const size_t found = left().find(what);
    if (found == std::string_view::npos) refuse("it ends early");
    return found;
  }

  XmlNode read_element(size_t depth) {
    if (depth > kDepthMax) refuse("too many levels");
    if (++nodes_ > kNodesMax) refuse("too many elements");
    if (!left().starts_with('<')) refuse("an element is missing");
    skip(1);
    const size_t end = until(">");
    std::string_view tag = left().substr(0, end);
    skip(end + 1);
    const bool is_closed = tag.ends_with('/');
    if (is_closed) tag.remove_suffix(1);
    XmlNode node;
    node.name = tag.substr(0, tag.find_first_of(kSpaces));
    check_name(node.name);
    if (!is_closed) read_content(node, depth);
    return node;
  }

  void read_content(XmlNode& node, size_t depth) {
    for (;;) {
      const size_t count = until("<");
      append_text(left().substr(0, count), node.text);
      skip(count);
      if (!left().starts_with("</")) {
        node.children.push_back(read_element(depth + 1));
        continue;
      }
      skip(2);
      const size_t end = until(">");
      if (left().substr(0, end) != node.name) refuse("elements overlap");
      skip(end + 1);
      return;
    }
  }

  static void check_name(std::string_view name) {
    const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_' || c == ':' || c == '.';
    });
    if (!is_name) refuse("not an element's name");
  }

  static void append_text(std::string_view raw, std::string& text) {
    constexpr std::pair<std::string_view, char> kEntities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    while (!raw.empty()) {
      const size_t plain = std::min(raw.find('&'), raw.size());
      text += raw.substr(0, plain);
      raw.remove_prefix(plain);
      if (raw.empty()) return;
      const auto named = std::ranges::find_if(
          kEntities, [&](const auto& entity) { return raw.starts_with(entity.first); });
      if (named != std::end(kEntities)) {
        text += named->second;
        raw.remove_prefix(named->first.size());
      } else {
        raw.remove_prefix(append_number(raw, text));
      }
    }
  }

  // "&#34;" and "&#x22;" of ASCII, which is all that an escaped key has.
  static size_t append_number(std::string_view raw, std::string& text) {
    const size_t end = std::min(raw.find(';'), size_t{8});
    if (!raw.starts_with("&#") || end >= raw.size() || raw[end] != ';') refuse("an unknown entity");
    const bool is_hex = raw.starts_with("&#x");
    const std::string_view digits = raw.substr(is_hex ? 3 : 2, end - (is_hex ? 3 : 2));
    const auto number = number_in<uint8_t>(digits, is_hex ? 16 : 10);
    if (!number || *number == 0 || *number > 127) refuse("an unknown entity");
    text += static_cast<char>(*number);
    return end + 1;
  }

  std::string_view text_;
  size_t position_ = 0, nodes_ = 0;
};

// It becomes a part of a request's address, escaped.
std::string key_in(std::string_view text, const char* problem = "not a key") {
  if (text.empty() || text.size() > kKeyBytesMax) refuse(problem);
  return std::string(text);
}

std::string id_in(std::string_view text) { return key_in(text, "not the name of an upload"); }

std::string etag_in(std::string_view text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
  if (text.empty() || text.size() > 256 || !is_plain) refuse("not an ETag");
  return std::string(text);
}

XmlNode root_named(std::string_view text, std::string_view name) {
  XmlNode root = parse_xml(text);
  if (root.name != name) refuse("not a " + std::string(name));
  return root;
}

ListedObject read_object(const XmlNode& node) {
  ListedObject object;
  object.key = key_in(node.text_of("Key"));
  const auto size = number_in<uint64_t>(node.text_of("Size"));
  const auto time = iso_time_ns(node.text_of("LastModified"));
  object.etag = etag_in(node.text_of("ETag"));
  if (!size) refuse("not a size");
  object.count_bytes = *size;
  object.modified_ns = time.value_or(0);
  return object;
}

std::optional<std::chrono::sys_days> day_of(int year, unsigned month, unsigned day) {
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  constexpr int kFirst = 1970, kLast = 2200;  // what nanoseconds of 64 bits hold
  return date.ok() && year >= kFirst && year <= kLast ? std::optional(std::chrono::sys_days(date))
                                                      : std::nullopt;
}

}  // namespace

std::string_view XmlNode::text_of(std::string_view wanted) const {
  const auto node = std::ranges::find(children, wanted, &XmlNode::name);
  return node == children.end() ? std::string_view() : node->text;
}

XmlNode parse_xml(std::string_view text) { return XmlReader(text).read(); }

ObjectList parse_object_list(std::string_view text, std::string_view prefix) {
  const XmlNode root = parse_xml(text);
  if (root.name != "ListBucketResult") refuse("not a listing");
  // Ceph's encode keys alone where that is asked for, so it is not.
  if (!root.text_of("EncodingType").empty()) refuse("its keys are encoded");
  ObjectList list;
  const auto check = [&](const std::string& key) {
    if (!key.starts_with(prefix)) refuse("a key outside of what was listed");
  };
  for (const XmlNode& node : root.children) {
    if (node.name == "Contents") {
      list.objects.push_back(read_object(node));
      check(list.objects.back().key);
    } else if (node.name == "CommonPrefixes") {
      list.prefixes.push_back(key_in(node.text_of("Prefix")));
      check(list.prefixes.back());
    }
  }
  if (root.text_of("IsTruncated") == "true") {
    list.next_token = root.text_of("NextContinuationToken");
    if (list.next_token.empty()) refuse("a page without the next one's token");
  }
  return list;
}

UploadList parse_upload_list(std::string_view text, std::string_view prefix) {
  const XmlNode root = root_named(text, "ListMultipartUploadsResult");
  UploadList list;
  for (const XmlNode& node : root.children) {
    if (node.name != "Upload") continue;
    list.uploads.push_back({key_in(node.text_of("Key")), id_in(node.text_of("UploadId"))});
    if (!list.uploads.back().key.starts_with(prefix)) refuse("a key outside of what was listed");
  }
  if (root.text_of("IsTruncated") == "true") {
    list.next_key = key_in(root.text_of("NextKeyMarker"));
    list.next_id = root.text_of("NextUploadIdMarker");
  }
  return list;
}

PartList parse_part_list(std::string_view text) {
  const XmlNode root = root_named(text, "ListPartsResult");
  PartList list;
  list.has_checksums = root.text_of("ChecksumAlgorithm") == "SHA256";
  for (const XmlNode& node : root.children) {
    if (node.name != "Part") continue;
    const auto number = number_in<uint32_t>(node.text_of("PartNumber"));
    const auto size = number_in<uint64_t>(node.text_of("Size"));
    if (!number || !size) refuse("not a part");
    S3Part part{*size, etag_in(node.text_of("ETag")), std::string(node.text_of("ChecksumSHA256"))};
    list.parts.emplace_back(*number, std::move(part));
  }
  if (root.text_of("IsTruncated") == "true") {
    list.next_number = root.text_of("NextPartNumberMarker");
    if (!number_in<uint32_t>(list.next_number)) refuse("a page without the next one's number");
  }
  return list;
}

std::string parse_answer(std::string_view text, std::string_view root, std::string_view element) {
  return id_in(root_named(text, root).text_of(element));
}

std::string s3_error_code(std::string_view text) {
  try {
    const XmlNode root = parse_xml(text);
    return root.name == "Error" ? std::string(root.text_of("Code")).substr(0, 64) : "";
  } catch (const Error&) {
    return {};
  }
}

std::optional<int64_t> iso_time_ns(std::string_view text) {
  using std::chrono::nanoseconds;
  constexpr std::string_view kShape = "dddd-dd-ddTdd:dd:dd";
  if (text.size() <= kShape.size() || text.back() != 'Z') return std::nullopt;
  for (size_t i = 0; i < kShape.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == 'd' ? !is_digit : text[i] != kShape[i]) return std::nullopt;
  }
  const auto at = [&](size_t start, size_t count) {
    return number_in<int>(text.substr(start, count)).value_or(0);
  };
  const auto day =
      day_of(at(0, 4), static_cast<unsigned>(at(5, 2)), static_cast<unsigned>(at(8, 2)));
  if (!day) return std::nullopt;
  std::string fraction(text.substr(kShape.size(), text.size() - kShape.size() - 1));
  if (!fraction.empty() && (fraction[0] != '.' || fraction.size() > 10)) return std::nullopt;
  if (!fraction.empty()) fraction.erase(0, 1);
  fraction.resize(9, '0');
  const auto nanos = number_in<uint32_t>(fraction);
  if (!nanos) return std::nullopt;
  const int64_t seconds = at(11, 2) * 3600 + at(14, 2) * 60 + at(17, 2);
  return nanoseconds(day->time_since_epoch()).count() + seconds * 1'000'000'000 + *nanos;
}

}  // namespace ckpt
