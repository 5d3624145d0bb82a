// Objects that are read by ranges over HTTP: of an S3-compatible store, or of a web server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ckpt/error.h>

#include "remote/aws.h"
#include "remote/http_client.h"
#include "remote/s3_reply.h"
#include "remote/url_text.h"

namespace ckpt {

// As it was when it was first seen: what is read later must be of the same.
struct RemoteObject {
  Address address;
  std::string shown;  // "s3://bucket/key"
  uint64_t count_bytes = 0;
  std::string etag = {}, modified = {};  // as answers say them
  int64_t modified_ns = 0;
};

// What an error says that could not be done.
enum class Doing : uint8_t { Read, Write };

// Safe to use from many threads.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Fills `out` from a place in the object, which must have as many bytes; again, from where it
  // stopped, where the network or the store fails for a moment. Throws IoFailure, also where the
  // object has changed; NotFound.
  void read(const RemoteObject& object, uint64_t offset_bytes, std::span<std::byte> out);
  // What fails is not tried again, or is again.
  void stop(bool is_stopped = true) { client_.stop(is_stopped); }

 protected:
  explicit ObjectStore(HttpOptions options) : client_(std::move(options)) {}
  // A GET of the object, to which a range is added.
  virtual HttpRequest request_of(const RemoteObject& object,
                                 std::vector<std::string> headers) const = 0;
  // What an answer that is not the bytes means.
  virtual Error refusal(const std::string& shown, const HttpResponse& answer,
                        Doing doing) const = 0;

  HttpClient client_;

 private:
  HttpResponse send_range(const RemoteObject& object, uint64_t offset_bytes,
                          std::span<std::byte> out);
};

// S3, and what speaks its protocol.
class S3Store final : public ObjectStore {
 public:
  explicit S3Store(AwsSettings settings);

  // Of a prefix: all right below it; one object; all below it.
  enum class Depth : uint8_t { OneFolder, First, All };
  // Throws NotFound where there is no such bucket; IoFailure.
  ObjectList list(const Address& bucket, const std::string& prefix, Depth depth);

  // A request to a key of the bucket, or to the bucket itself; signed anew for each attempt.
  // `request`: its host and path are ours to find. The last answer, whatever it is.
  HttpResponse send(const Address& address, const S3Request& request,
                    std::span<const std::byte> body = {});
  Error refusal(const std::string& shown, const HttpResponse& answer, Doing doing) const override;

 protected:
  HttpRequest request_of(const RemoteObject& object,
                         std::vector<std::string> headers) const override;

 private:
  HttpRequest request_to(const std::string& bucket, const std::string& key,
                         S3Request request) const;

  AwsSettings settings_;
};

class WebStore final : public ObjectStore {
 public:
  explicit WebStore(HttpOptions options) : ObjectStore(std::move(options)) {}
  // The file at an address; nullopt where none is, or a folder. Throws IoFailure; Unsupported where
  // the server gives no ranges.
  std::optional<RemoteObject> find(const Address& address, const std::string& shown,
                                   bool& is_folder);

 protected:
  HttpRequest request_of(const RemoteObject& object,
                         std::vector<std::string> headers) const override;
  Error refusal(const std::string& shown, const HttpResponse& answer, Doing doing) const override;
};

}  // namespace ckpt
