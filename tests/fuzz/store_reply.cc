// What an object store answers. Keys of a listing lie below its prefix, and no page comes twice.
#include "fuzz/fuzz.h"
#include "remote/s3_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::text_of(data, size);
  fuzz::succeeds([&] {
    for (const ckpt::ListedObject& object : ckpt::parse_object_list(text, "p/").objects) {
      if (!object.key.starts_with("p/") || object.etag.empty()) __builtin_trap();
    }
  });
  fuzz::succeeds([&] {
    for (const ckpt::ListedUpload& upload : ckpt::parse_upload_list(text, "p/").uploads) {
      if (!upload.key.starts_with("p/") || upload.id.empty()) __builtin_trap();
    }
  });
  fuzz::succeeds([&] {
    for (const auto& [number, part] : ckpt::parse_part_list(text).parts) {
      if (part.etag.empty()) __builtin_trap();
    }
  });
  fuzz::succeeds([&] {
    const std::string id = ckpt::parse_answer(text, "InitiateMultipartUploadResult", "UploadId");
    if (id.empty()) __builtin_trap();
  });
  if (ckpt::s3_error_code(text).size() > 64) __builtin_trap();
  return 0;
}
