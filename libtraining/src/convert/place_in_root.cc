#include <ckpt/error.h>
#include <training/convert.h>

namespace optim {

// The folder that was opened tells the iteration's name.
std::filesystem::path place_in_root(const std::filesystem::path& root,
                                    const OpenedTraining& source) {
  if (!source.catalog().iteration) {
    const auto files = source.files();
    const auto& shown = files.size() == 1 ? files.front() : source.folder();
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = shown.string(), .key = {}},
                      "is not an iteration, so it cannot be added to a checkpoint root");
  }
  return root / source.source().resolved(source.folder()).filename();
}

}  // namespace optim
