// Objects that are written: in parts, which are seen together or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remote/object_store.h"

namespace ckpt {

// The requests to one bucket that change it, and those that say what is there now. Each is sent
// again where the network or the store fails for a moment, and what an answer that was lost had
// said is found out. Errors name the object. Safe to use from many threads.
class S3Writer {
 public:
  S3Writer(std::shared_ptr<S3Store> store, std::string bucket)
      : store_(std::move(store)), bucket_(std::move(bucket)) {}

  using Part = S3Part;
  using Parts = std::map<uint32_t, Part>;  // by number, from 1
  struct Upload {
    std::string key, id;
    bool has_checksums = false;  // the store compares and keeps SHA-256 of parts
  };
  static constexpr uint32_t kPartsMax = 10'000;
  static constexpr uint64_t kPutBytesMax = uint64_t{5} << 30;

  Upload begin(const std::string& key);
  // Throws IoFailure where the store states another checksum of the part than what was sent has.
  Part send_part(const Upload& upload, uint32_t number, std::span<const std::byte> bytes);
  // Whether a part that the store has is of these bytes.
  static bool is_same(const Part& part, std::span<const std::byte> bytes);
  static bool are_same(const Parts& listed, const Parts& sent);
  // The parts that the store has; finds out whether it keeps their checksums. None: it is gone.
  std::optional<Parts> parts_of(Upload& upload);
  std::vector<ListedUpload> uploads_below(const std::string& prefix);
  // Makes an object of parts 1 to N; replaces none where the store can tell.
  // Throws IoFailure where it is not of the bytes that were sent.
  void complete(const Upload& upload, const Parts& parts);
  // Whether an object may be what complete() made of these parts.
  static bool may_be(const ListedObject& object, const Parts& parts);
  void drop(const ListedUpload& upload);  // also of one that is gone

  // One small object. False: another one is there already.
  bool put_new(const std::string& key, std::string_view text);
  // Replaces the object that has this ETag, or none where it is empty. False: another one is there.
  bool replace(const std::string& key, std::string_view text, const std::string& etag);
  void remove(const std::string& key);  // also of one that is not there

  struct Text {
    std::string text, etag;
  };
  std::optional<Text> text_of(const std::string& key);
  std::vector<ListedObject> objects_below(const std::string& prefix);
  bool has_any_below(const std::string& prefix);
  std::optional<ListedObject> object_at(const std::string& key);
  void stop(bool is_stopped) { store_->stop(is_stopped); }
  std::string shown(const std::string& key) const { return "s3://" + bucket_ + "/" + key; }

 private:
  HttpResponse send(const std::string& key, S3Request request,
                    std::span<const std::byte> body = {});
  bool put(const std::string& key, std::string_view text, const std::string& condition);
  void erase(const std::string& key, S3Request request);
  [[noreturn]] void refuse(const std::string& key, const HttpResponse& answer) const;

  std::shared_ptr<S3Store> store_;
  std::string bucket_;
};

}  // namespace ckpt
