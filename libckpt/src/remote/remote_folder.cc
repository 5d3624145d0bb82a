// Object stores and web servers as sources of checkpoints. What was seen of an object first holds
// for as long as the folder lives: one that changes later is an error, never a mix.
#include <map>
#include <mutex>
#include <utility>

#include <ckpt/error.h>

#include "codec/hash_functions.h"
#include "io/directory.h"
#include "remote/object_store.h"
#include "remote/range_cache.h"
#include "remote/remote_folder.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

using SourcePtr = std::shared_ptr<RangeCache::Source>;

// What stands at a name: a file, or a folder (null).
struct Found {
  EntryKind kind = EntryKind::Absent;
  SourcePtr file = nullptr;
};
using Listing = TextMap<Found>;

FileState state_of(const RemoteObject& object) {
  const Sha256 digest = sha256(object.etag.empty() ? object.modified : object.etag);
  FileState state{.inode = 0, .count_bytes = object.count_bytes, .modified_ns = object.modified_ns};
  for (size_t i = 0; i < sizeof(state.inode); ++i) state.inode = state.inode << 8 | digest.bytes[i];
  return state;
}

class RemoteFile final : public OpenedFile {
 public:
  RemoteFile(SourcePtr source, std::shared_ptr<RangeCache> cache, std::string name)
      : source_(std::move(source)),
        cache_(std::move(cache)),
        name_(std::move(name)),
        state_(state_of(source_->object)) {}

  uint64_t size_bytes() const override { return state_.count_bytes; }
  const FileState& state() const override { return state_; }
  const std::string& file_name() const override { return name_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    read(offset_bytes, out, ReadUse::ThisRange);
  }
  void read_once(uint64_t offset_bytes, std::span<std::byte> out) const override {
    read(offset_bytes, out, ReadUse::Passing);
  }

 private:
  void read(uint64_t offset_bytes, std::span<std::byte> out, ReadUse use) const {
    if (offset_bytes > state_.count_bytes || out.size() > state_.count_bytes - offset_bytes) {
      throw Error(ErrorCode::Corrupt, {name_, offset_bytes},
                  std::to_string(out.size()) + " bytes expected here, but the file ends at " +
                      std::to_string(state_.count_bytes))
          .mark_incomplete();
    }
    cache_->read(*source_, offset_bytes, out, use);
  }

  SourcePtr source_;
  std::shared_ptr<RangeCache> cache_;
  std::string name_;
  FileState state_;
};

bool is_web(const Address& address) { return address.scheme != "s3"; }

class RemoteFolder final : public Folder {
 public:
  explicit RemoteFolder(Variables variables) : variables_(std::move(variables)) {}

  std::vector<std::string> list(const fs::path& folder) const override {
    const std::scoped_lock lock(mutex_);
    const Address address = parse_address(folder);
    if (!can_list(folder)) {
      throw Error(ErrorCode::Unsupported, {address_text(folder)},
                  "a web server does not say what is in a folder",
                  "read it by s3://BUCKET/PREFIX, or copy it first");
    }
    std::vector<std::string> names;
    for (const auto& [name, found] : listed(address)) names.push_back(name);
    if (names.empty()) throw Error(ErrorCode::NotFound, {address_text(folder)}, "does not exist");
    return names;
  }

  bool can_list(const fs::path& folder) const override { return !is_web(parse_address(folder)); }

  Entry stat(const fs::path& path) const override {
    const std::scoped_lock lock(mutex_);
    const Found found = find(path);
    if (found.kind != EntryKind::File) return {found.kind, {}};
    return {EntryKind::File, state_of(found.file->object)};
  }

  std::unique_ptr<OpenedFile> open(const fs::path& folder, const Name& name) const override {
    const std::string& shown = name.shown.empty() ? name.path : name.shown;
    check_inside(folder, name.path);
    const std::scoped_lock lock(mutex_);
    const Found found = find(folder / name.path);
    if (found.kind == EntryKind::Absent) throw Error(ErrorCode::NotFound, {shown}, "is missing");
    if (found.kind != EntryKind::File)
      throw Error(ErrorCode::IoFailure, {shown}, "is a folder; expected a file");
    return std::make_unique<RemoteFile>(found.file, cache_, shown);
  }

  void check_inside(const fs::path&, const std::string& name) const override {
    if (is_safe_relative(name)) return;
    throw Error(ErrorCode::Corrupt, {name}, "leads out of the checkpoint's folder");
  }
  fs::path resolved(const fs::path& path) const override { return address_text(path); }

  const Variables& variables() const { return variables_; }

 private:
  // All of these hold the mutex.

  S3Store& s3() const {
    if (!s3_) s3_ = std::make_shared<S3Store>(read_aws_settings(variables_));
    return *s3_;
  }
  WebStore& web() const {
    if (!web_) {
      HttpOptions options;
      options.ca_file = variables_("AWS_CA_BUNDLE").value_or("");
      web_ = std::make_shared<WebStore>(std::move(options));
    }
    return *web_;
  }

  SourcePtr s3_file(const Address& bucket, const ListedObject& listed) const {
    Address address = bucket;
    address.path = listed.key;
    RemoteObject object{address, address_key(address), listed.count_bytes, listed.etag};
    object.modified_ns = listed.modified_ns;
    return std::make_shared<RangeCache::Source>(s3_, std::move(object));
  }

  // All that is right below a prefix, asked once.
  const Listing& listed(const Address& folder) const {
    const auto known = listings_.find({folder.host, folder.path});
    if (known != listings_.end()) return known->second;
    const std::string prefix = folder.path.empty() ? "" : folder.path + "/";
    const ObjectList objects = s3().list(folder, prefix, S3Store::Depth::OneFolder);
    Listing listing;
    const auto add = [&](std::string_view name, Found found) {
      const bool is_name = !name.empty() && name != "." && name != "..";
      if (is_name) listing.insert_or_assign(std::string(name), std::move(found));
    };
    for (const std::string& each : objects.prefixes) {
      add(std::string_view(each).substr(prefix.size(), each.size() - prefix.size() - 1),
          {EntryKind::Folder});
    }
    for (const ListedObject& each : objects.objects) {
      const std::string_view name = std::string_view(each.key).substr(prefix.size());
      const auto folder_of_name = listing.find(name);
      const bool is_marker = each.count_bytes == 0 && folder_of_name != listing.end();
      if (!is_marker) add(name, {EntryKind::File, s3_file(folder, each)});
    }
    return listings_.emplace(std::pair(folder.host, folder.path), std::move(listing)).first->second;
  }

  // Whether it was listed, or what it lies in says so: then the rest of it is asked at once.
  bool is_known_folder(const Address& folder) const {
    if (listings_.contains({folder.host, folder.path})) return true;
    const size_t slash = folder.path.rfind('/');
    const auto around = listings_.find(
        {folder.host, slash == std::string::npos ? "" : folder.path.substr(0, slash)});
    if (around == listings_.end()) return false;
    const auto found = around->second.find(std::string_view(folder.path).substr(slash + 1));
    return found != around->second.end() && found->second.kind == EntryKind::Folder;
  }

  Found find(const fs::path& path) const {
    const Address address = parse_address(path);
    if (is_web(address)) return find_on_web(path, address);
    if (address.path.empty()) return listed(address), Found{EntryKind::Folder};
    const size_t slash = address.path.rfind('/');
    Address around = address;
    around.path = slash == std::string::npos ? "" : address.path.substr(0, slash);
    if (is_known_folder(around)) {
      const Listing& listing = listed(around);
      const auto found = listing.find(std::string_view(address.path).substr(slash + 1));
      return found == listing.end() ? Found{} : found->second;
    }
    if (!listed(address).empty()) return {EntryKind::Folder};
    return find_object(address);
  }

  Found find_object(const Address& address) const {
    const auto known = objects_.find(address_key(address));
    if (known != objects_.end()) return known->second;
    Found found;
    const ObjectList first = s3().list(address, address.path, S3Store::Depth::First);
    if (!first.objects.empty() && first.objects[0].key == address.path)
      found = {EntryKind::File, s3_file(address, first.objects[0])};
    return objects_[address_key(address)] = found;
  }

  // A folder's address ends with a slash, or leads to one that does.
  Found find_on_web(const fs::path& path, const Address& address) const {
    if (path.string().ends_with('/') || address.path.empty()) return {EntryKind::Folder};
    const auto known = objects_.find(address_key(address));
    if (known != objects_.end()) return known->second;
    Found found;
    bool is_folder = false;
    if (auto object = web().find(address, address_text(path), is_folder))
      found = {EntryKind::File, std::make_shared<RangeCache::Source>(web_, std::move(*object))};
    if (is_folder) found.kind = EntryKind::Folder;
    return objects_[address_key(address)] = found;
  }

  static std::string address_key(const Address& address) {
    return address.scheme + "://" + address.host + "/" + address.path;
  }

  Variables variables_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<S3Store> s3_;
  mutable std::shared_ptr<WebStore> web_;
  mutable std::map<std::pair<std::string, std::string>, Listing> listings_;  // bucket, folder
  mutable std::map<std::string, Found> objects_;  // what was asked for alone
  std::shared_ptr<RangeCache> cache_ = std::make_shared<RangeCache>();
};

Variables variables_for(const fs::path& address) {
  const auto source = source_of(address);
  if (const auto* const remote = dynamic_cast<const RemoteFolder*>(source.get())) {
    return remote->variables();
  }
  throw Error(ErrorCode::Unsupported, {address_text(address)},
              "is in a store that is only read by this program");
}

}  // namespace

bool is_in_store(const fs::path& path) {
  return scheme_of(path.native()) == "s3" && has_source("s3");
}

std::shared_ptr<S3Writer> writer_to(const fs::path& address) {
  return std::make_shared<S3Writer>(
      std::make_shared<S3Store>(read_aws_settings(variables_for(address))),
      parse_address(address).host);
}

std::shared_ptr<const Folder> seen_anew(const fs::path& address) {
  return remote_folder(variables_for(address));
}

std::shared_ptr<const Folder> remote_folder(Variables variables) {
  return std::make_shared<const RemoteFolder>(std::move(variables));
}

}  // namespace ckpt
