// Which folder a path is read through, by the scheme of its address.
#include <algorithm>
#include <map>
#include <mutex>

#include <ckpt/error.h>
#include <ckpt/folder.h>

namespace ckpt {
namespace {

struct AddedSources {
  std::mutex mutex;
  std::map<std::string, MakeFolder, std::less<>> by_scheme;

  static AddedSources& all() {
    static AddedSources added;
    return added;
  }
  MakeFolder find(std::string_view scheme) {
    const std::scoped_lock lock(mutex);
    const auto found = by_scheme.find(scheme);
    return found == by_scheme.end() ? MakeFolder() : found->second;
  }
};

}  // namespace

std::string_view scheme_of(std::string_view path) {
  const std::string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  if (scheme.size() < 2 || scheme.size() == path.size()) return {};
  const bool is_name = std::ranges::all_of(scheme, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '-' || c == '.';
  });
  return is_name ? scheme : std::string_view();
}

void add_source(const std::string& scheme, MakeFolder make) {
  AddedSources& added = AddedSources::all();
  const std::scoped_lock lock(added.mutex);
  added.by_scheme[scheme] = std::move(make);
}

bool has_source(std::string_view scheme) { return bool(AddedSources::all().find(scheme)); }

std::shared_ptr<const Folder> source_of(const std::filesystem::path& path) {
  const MakeFolder make = AddedSources::all().find(scheme_of(path.native()));
  return make ? make() : local_folder();
}

EntryKind kind_at(const std::filesystem::path& path) {
  try {
    return source_of(path)->kind_of(path);
  } catch (const Error&) {
    return EntryKind::Absent;
  }
}

}  // namespace ckpt
