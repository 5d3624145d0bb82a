#include "format/location/location.h"

#include "io/directory.h"

namespace ckpt {

bool may_lead_out(const Location& location, const std::string& name, const Limits& limits) {
  return limits.follow_links || (location.named_file && name == *location.only_file);
}

std::unique_ptr<OpenedFile> open_source(const Location& location, const std::string& name,
                                        const std::string& shown, const Limits& limits) {
  const Links links = links_if(may_lead_out(location, name, limits));
  std::unique_ptr<OpenedFile> file = location.source->open(location.folder, {name, shown, links});
  location.opened->note(name, file->state());
  return file;
}

}  // namespace ckpt
