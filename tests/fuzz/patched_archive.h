// A torch.save archive whose pickle is changed in places, with checksums that are right again.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codec/crc32.h"
#include "codec/zip.h"
#include "support/memory_payloads.h"
#include "support/zip_directory.h"
#include "targets/archive_writer.h"

namespace fuzz {

// What a fuzzer has found, read from its front; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}
  bool is_at_end() const { return next_ == end_; }
  uint8_t byte() { return is_at_end() ? uint8_t{0} : *next_++; }
  size_t number() {  // of two bytes
    const size_t low = byte();
    return low | size_t{byte()} << 8;
  }
  // Near to what is right, or far from it.
  uint64_t lie(uint64_t known) {
    const uint8_t how = byte();
    switch (how % 8) {
      case 0: return known + how / 8;
      case 1: return known - how / 8;
      case 2: return number();
      case 3: return known * (how / 8 + 1);
      case 4: return uint64_t{1} << (32 + how / 8);
      case 5: return (uint64_t{1} << 63) - how / 8;
      case 6: return ~uint64_t{0} - how / 8;
      default: return known / (how / 8 + 1);
    }
  }

 private:
  const uint8_t *next_, *end_;
};

class Archive {
 public:
  std::string pickle;
  std::vector<std::string> records;  // data/0, data/1, ...

  // As pickle's SHORT_BINUNICODE and BINUNICODE have a text.
  void replace_text(std::string_view old_text, std::string_view new_text) {
    replace(unicode(old_text), unicode(new_text));
  }

  // The value that a dict has under a name: a number, or True where it `is_flag`.
  void set_number_behind(std::string_view name, bool is_flag, uint64_t value) {
    const std::string key = unicode(name);
    size_t at = pickle.find(key);
    if (at == pickle.npos) return;
    at += key.size();
    if (at < pickle.size() && pickle[at] == 'q') at += 2;  // BINPUT
    if (at < pickle.size() && pickle[at] == 'r') at += 5;  // LONG_BINPUT
    if (const size_t length = length_of_scalar(at)) {
      pickle.replace(at, length, is_flag ? std::string(1, '\x88') : number(value));
    }
  }

  void lie_in_a_number(Input& input) {
    std::vector<size_t> numbers;
    for (size_t at = 0; at < pickle.size(); ++at) {
      if (pickle[at] == 'M' || pickle[at] == 'J') numbers.push_back(at);
    }
    if (numbers.empty()) return;
    const size_t at = numbers[input.number() % numbers.size()];
    const size_t length = length_of_scalar(at);
    if (length == 0) return;
    uint32_t known = 0;
    std::memcpy(&known, &pickle[at + 1], length - 1);
    pickle.replace(at, length, number(input.lie(known)));
  }

  void splice(Input& input) {
    const size_t at = input.number() % (pickle.size() + 1);
    const size_t removed = std::min<size_t>(input.byte() % 8, pickle.size() - at);
    std::string added(input.byte() % 8, '\0');
    for (char& byte : added) byte = static_cast<char>(input.byte());
    pickle.replace(at, removed, added);
  }

  void resize_record(Input& input) {
    if (records.empty()) return;
    constexpr uint64_t kRecordBytesMax = 1 << 18;
    std::string& record = records[input.byte() % records.size()];
    record.resize(input.lie(record.size()) % kRecordBytesMax);
  }

  std::string encoded() const {
    std::vector<uint64_t> sizes;
    for (const std::string& record : records) sizes.push_back(record.size());
    const ckpt::ArchiveImage image("archive", pickle, sizes);
    std::string bytes;
    std::vector<uint32_t> crcs;
    for (size_t member = 0; member < image.member_count(); ++member) {
      const std::string content = content_of(image, member, crcs);
      crcs.push_back(ckpt::crc32(test::bytes_of(content)));
      bytes.resize(image.place(member).header_offset_bytes);
      bytes += image.layout().local_header(member);
      bytes.resize(image.place(member).data_offset_bytes);
      bytes += content + image.layout().descriptor(member, crcs.back());
    }
    return bytes + test::directory_of(image.layout(), crcs);
  }

 private:
  std::string content_of(const ckpt::ArchiveImage& image, size_t member,
                         const std::vector<uint32_t>& crcs) const {
    if (image.is_record(member)) return records[ckpt::ArchiveImage::record_of(member)];
    if (member == image.id_member()) return image.serialization_id(crcs);
    return std::string(image.fixed_content(member));
  }

  static std::string unicode(std::string_view text) {
    std::string bytes = "X";
    for (size_t shift = 0; shift < 32; shift += 8) {
      bytes += static_cast<char>(text.size() >> shift & 0xFF);
    }
    return bytes + std::string(text);
  }

  static std::string number(uint64_t value) {  // LONG1 of eight bytes
    std::string bytes = "\x8a\x08";
    for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift & 0xFF);
    return bytes;
  }

  // Of an int, a bool or None at this place; 0: there is none.
  size_t length_of_scalar(size_t at) const {
    static const std::map<char, size_t> lengths = {{'K', 2}, {'M', 3},    {'J', 5},
                                                   {'N', 1}, {'\x88', 1}, {'\x89', 1}};
    if (at >= pickle.size()) return 0;
    const auto found = lengths.find(pickle[at]);
    return found != lengths.end() && at + found->second <= pickle.size() ? found->second : 0;
  }

  void replace(const std::string& from, const std::string& to) {
    const size_t at = pickle.find(from);
    if (at != pickle.npos) pickle.replace(at, from.size(), to);
  }
};

// Of a part of a file that holds one.
inline Archive archive_in(const std::string& file, ckpt::ByteRange range) {
  Archive archive;
  std::map<size_t, std::string> records;
  for (const ckpt::zip::Member& member : ckpt::zip::read_directory(test::MemoryFile(file), range)) {
    const std::string content = file.substr(member.data.offset_bytes, member.data.count_bytes);
    const std::string name = member.name.substr(member.name.find('/') + 1);
    if (name == "data.pkl") archive.pickle = content;
    if (name.starts_with("data/")) records[std::stoul(name.substr(5))] = content;
  }
  for (auto& [number, content] : records) archive.records.push_back(std::move(content));
  return archive;
}

}  // namespace fuzz
