#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/system_calls.h"

namespace test {

// Makes the real calls and notes down what they change below one folder, and what is synced when.
// From the notes follows what a device may hold after the power fails at any moment: a change of a
// folder (a name made, renamed, removed) is only certain once that folder is synced, a file's
// content once the file is. What is not certain may be there or not, each change for itself, which
// is worse than what file systems with a journal do. For one thread.
class PowerLoss final : public ckpt::SystemCalls {
 public:
  // Starts with what is in `root`.
  explicit PowerLoss(std::filesystem::path root);

  bool has_exchange = true;  // false: as a file system without RENAME_EXCHANGE

  uint64_t change_count() const { return changes_.size(); }

  // Writes into the empty folder `image` what may be left of `root` when the power fails before
  // change `moment`; `survives` decides for each change that is not certain.
  using Survives = std::function<bool(uint64_t change)>;
  void write_image(uint64_t moment, const Survives& survives,
                   const std::filesystem::path& image) const;

  int openat(int folder, const char* path, int flags, mode_t mode) override;
  int close(int file) override;
  ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) override;
  int fallocate(int file, int mode, off_t offset_bytes, off_t count_bytes) override;
  int ftruncate(int file, off_t count_bytes) override;
  int fsync(int file) override;
  int mkdirat(int folder, const char* path, mode_t mode) override;
  int unlinkat(int folder, const char* path, int flags) override;
  int linkat(Name source, Name target) override;
  int renameat2(SystemCalls::Name source, SystemCalls::Name target, unsigned flags) override;

 private:
  using Inode = uint64_t;
  static constexpr Inode kNone = 0, kRoot = 1;
  struct Entry {  // of a folder
    Inode folder = kNone;
    std::string name;
  };
  struct Change {
    enum class Kind : uint8_t { SetNames, Write, Resize, Sync };
    Kind kind = Kind::Sync;
    Inode inode = kNone;                              // of the file or folder, but for SetNames
    std::vector<std::pair<Entry, Inode>> names = {};  // what they stand for then; kNone: nothing
    uint64_t offset_bytes = 0;                        // Write; the new size of Resize
    std::string bytes = {};                           // Write
  };
  struct Node {
    bool is_folder = false;
    std::map<std::string, Inode> names = {};
    std::string bytes = {};
  };
  using Nodes = std::map<Inode, Node>;

  void load(Inode folder, const std::filesystem::path& path);
  // Folder kNone where the path lies elsewhere.
  Entry entry_of(int folder, const char* path) const;
  Inode inode_of(const Entry& entry) const;
  Inode add_node(bool is_folder);
  void remember(int folder, const char* path);  // which inode of the system it is
  void note(Change change);
  void set_names(std::vector<std::pair<Entry, Inode>> names);
  bool is_certain(uint64_t change, uint64_t moment) const;
  static void apply(const Change& change, Nodes& nodes);
  using Paths = std::map<Inode, std::filesystem::path>;  // of an image
  static void write_folder(const Nodes& nodes, Inode folder, Paths& paths);
  void translate_inodes(const Paths& paths) const;

  std::filesystem::path root_;
  Nodes nodes_;   // as running programs see them
  Nodes before_;  // at the beginning
  Inode last_inode_ = kRoot;
  std::map<int, Inode> open_;
  std::map<std::string, Inode> known_as_;  // by the system's inode, as text
  std::vector<Change> changes_;
};

}  // namespace test
