// Options that would have no effect are refused.
#include "convert/unused_options.h"

#include <string>

#include <ckpt/error.h>

namespace optim {

void require_form_of_optimizer(const ConvertOptions& options, const char* what) {
  if (options.form.empty()) return;
  throw ckpt::Error(
      ckpt::ErrorCode::InvalidArgument, {},
      std::string(what) + " has no optimizer state whose form could be chosen",
      "leave out --optimizer-sharding, --target-megatron, --bucket-size, --pad-buckets and "
      "--state-dtype");
}

}  // namespace optim
