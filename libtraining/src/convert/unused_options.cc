// Options that would have no effect are refused.
#include "convert/unused_options.h"

#include <string>

#include <ckpt/error.h>

namespace optim {

namespace {

[[noreturn]] void refuse(const char* what, const std::string& options) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    std::string(what) + " has no optimizer state whose form could be chosen",
                    "leave out --optimizer-sharding, " + options +
                        "--bucket-size, --pad-buckets and --state-dtype");
}

}  // namespace

void require_form_of_optimizer(const ConvertOptions& options, const char* what) {
  if (!options.form.empty()) refuse(what, "--target-megatron, ");
}

void require_layout_alone(const ConvertOptions& options) {
  FilingChange form = options.form;
  form.release = nullptr;
  if (!form.empty()) refuse("a model without its optimizer", "");
}

}  // namespace optim
