// What stands at a path beside a destination and is not ours is named, and stays as it is
// (docs/security.md): paths, kinds of things and options, each with each.
#include <ckpt/convert.h>
#include <ckpt/error.h>
#include <ckpt/root.h>
#include <ckpt/staging.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "io/system_calls.h"
#include "support/convention.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

using ckpt::ErrorCode;
using ckpt::Format;
using test::TemporaryFolder;
using Tree = std::map<std::string, std::string>;

namespace {

enum class Planted : uint8_t { LinkToFolder, LinkToFile, Dangling, Pipe, Folder, File, SecondName };
constexpr Planted kPlanted[] = {Planted::LinkToFolder, Planted::LinkToFile, Planted::Dangling,
                                Planted::Pipe,         Planted::Folder,     Planted::File};
constexpr const char* kKinds[] = {
    "a link to a folder", "a link to a file", "a dangling link", "a pipe",
    "a folder",           "a file",           "a second name"};

enum class Command : uint8_t { Plain, Resume, Finish, Clean, Force, Share };
constexpr Command kCommands[] = {Command::Plain, Command::Resume, Command::Finish,
                                 Command::Clean, Command::Force,  Command::Share};
constexpr const char* kOptions[] = {"plain",   "--resume", "--finish",
                                    "--clean", "--force",  "--rank 1 --world-size 2"};

struct Output {
  Format format;
  const char* name;
};
constexpr Output kOutputs[] = {{Format::TorchDist, "out"},
                               {Format::Torch, "out.pt"},
                               {Format::Safetensors, "out.safetensors"},
                               {Format::Safetensors, "out"}};

// A folder with a victim, and a destination in another one.
class Scene {
  // The real calls, without waiting for the device.
  class Hasty final : public ckpt::SystemCalls {
   public:
    int fsync(int) override { return 0; }
  };

 public:
  explicit Scene(const Output& output) : output_(output), out_(folder_ / "w" / output.name) {
    holder_ = out_.parent_path() / ("." + std::string(output.name) + ".shardwise-partial");
    test::write_file(folder_ / "victim/f", "precious");
    test::write_file(folder_ / "victim/content/g", "precious");
    test::write_file(folder_ / "victim/job", "shardwise staging\n");
    fs::create_directory(folder_ / "w");
    victim_ = test::tree_of(folder_ / "victim");
  }

  const fs::path& holder() const { return holder_; }
  const fs::path& out() const { return out_; }
  fs::path victim() const { return folder_ / "victim"; }
  // Neither is the victim touched, nor is a link to it, or what was planted, gone.
  bool is_untouched(const fs::path& planted = {}) const {
    if (test::tree_of(victim()) != victim_) return false;
    if (planted.empty() || fs::is_symlink(planted) || fs::is_fifo(planted)) return true;
    const fs::path file = fs::is_directory(planted) ? planted / "mine" : planted;
    return fs::is_regular_file(file) && test::read_file(file) == "precious";
  }

  void plant(const fs::path& path, Planted kind) const {
    fs::remove_all(path);
    fs::create_directories(path.parent_path());
    switch (kind) {
      case Planted::LinkToFolder: return fs::create_symlink(victim(), path);
      case Planted::LinkToFile: return fs::create_symlink(victim() / "f", path);
      case Planted::Dangling: return fs::create_symlink(folder_ / "nowhere", path);
      case Planted::Pipe: BOOST_REQUIRE(mkfifo(path.c_str(), 0600) == 0); return;
      case Planted::Folder: return test::write_file(path / "mine", "precious");
      case Planted::File: return test::write_file(path, "precious");
      case Planted::SecondName: return fs::create_hard_link(victim() / "f", path);
    }
  }

  void run(Command command, ckpt::Share share = {}) const {
    Hasty hasty;
    std::optional<ckpt::InstalledSystemCalls> installed;
    if (!is_watched_) installed.emplace(hasty);
    if (command == Command::Clean) {
      ckpt::Staging::clean(out_);
      return;
    }
    ckpt::ConvertOptions options;
    options.format = output_.format;
    options.resume = command == Command::Resume;
    options.finish = command == Command::Finish;
    options.force = command == Command::Force;
    options.share = command == Command::Share ? ckpt::Share{1, 2, 64} : share;
    ckpt::convert(test::golden("torch_save_zip/zip.pt"), out_, options);
  }
  std::optional<ckpt::Error> error_of(Command command) const {
    return test::error_of([&] { run(command); });
  }
  void watch() { is_watched_ = true; }  // other calls are installed
  void start_first() const { run(Command::Plain, {0, 2, 64}); }

 private:
  TemporaryFolder folder_;
  Output output_;
  fs::path out_, holder_;
  Tree victim_;
  bool is_watched_ = false;
};

std::string told(const Output& output, const fs::path& path, Planted kind, Command command) {
  return std::string(name(output.format)) + ", " + path.string() + " is " +
         kKinds[static_cast<size_t>(kind)] + ", " + kOptions[static_cast<size_t>(command)];
}

// Refused by name, with what can be done.
void check_refused(const Scene& scene, const fs::path& planted, Command command,
                   const std::string& what) {
  const auto error = scene.error_of(command);
  BOOST_TEST_REQUIRE(error.has_value(), what);
  BOOST_TEST((error->code() == ErrorCode::AlreadyExists), what << ": " << error->what());
  BOOST_TEST(error->where().file == planted.string(), what << ": " << error->what());
  BOOST_TEST(test::contains(error->problem(), "was not made by this program"), error->what());
  BOOST_TEST(test::contains(error->hint(), "move it elsewhere"), error->what());
  BOOST_TEST(scene.is_untouched(planted), what);
  BOOST_TEST(!fs::exists(fs::symlink_status(scene.out())), what);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(paths_beside)

BOOST_AUTO_TEST_CASE(what_stands_in_place_of_the_staging_folder_is_refused_and_untouched) {
  for (const Output& output : kOutputs) {
    for (const Planted kind : kPlanted) {
      for (const Command command : kCommands) {
        const Scene scene(output);
        scene.plant(scene.holder(), kind);
        const bool is_folder = kind == Planted::Folder;
        check_refused(scene, is_folder ? scene.holder() / "mine" : scene.holder(), command,
                      told(output, scene.holder(), kind, command));
      }
    }
  }
}

namespace {

void check_entry(const Output& output, const std::string& entry, Planted kind, bool is_started) {
  const bool is_content = is_started && entry == "content";
  // What a job of ours makes may be any file, until it is compared with the record.
  if (is_content && kind == Planted::File) return;
  for (const Command command : kCommands) {
    if (is_content && kind == Planted::Folder && command != Command::Clean) continue;
    const Scene scene(output);
    if (is_started) scene.start_first();
    const fs::path path = scene.holder() / entry;
    scene.plant(path, kind);
    const std::string what =
        told(output, path, kind, command) + (is_started ? ", in a started job" : "");
    const auto error = scene.error_of(command);
    BOOST_TEST_REQUIRE(error.has_value(), what);
    BOOST_TEST((error->code() == ErrorCode::AlreadyExists), what << ": " << error->what());
    BOOST_TEST(error->where().file.starts_with(path.string()), what << ": " << error->what());
    BOOST_TEST(test::contains(error->problem(), "was not made by this program"),
               what << ": " << error->what());
    BOOST_TEST(scene.is_untouched(path), what);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_stands_in_a_staging_folder_is_refused_and_untouched) {
  const std::vector<std::string> all = {
      "content", "mine",      "lock",       "job",         "publishing",     "replaced",
      "part-0",  "part-1",    "part-0.new", "part-1.lock", ".job.new",       ".job-1.new",
      "job-1",   ".mine.new", "part-x",     "part-1.pt",   ".publishing.new"};
  for (const Output& output : kOutputs) {
    const bool has_all = output.format == Format::TorchDist;
    for (const std::string& entry :
         std::vector(all.begin(), has_all ? all.end() : all.begin() + 2)) {
      for (const Planted kind : kPlanted) {
        for (const bool is_started : {false, true}) check_entry(output, entry, kind, is_started);
      }
    }
  }
}

// At the place of a file of the output, in a folder of it, and beside them.
BOOST_AUTO_TEST_CASE(what_stands_among_the_files_of_an_output_is_never_followed_nor_removed) {
  const Output output = kOutputs[0];
  const char* names[] = {"content/__0_0.distcp", "content/mine", "content/.metadata",
                         "content/sub/mine"};
  for (const char* entry : names) {
    for (const Planted kind : kPlanted) {
      for (const Command command : kCommands) {
        const Scene scene(output);
        scene.start_first();
        const fs::path path = scene.holder() / entry;
        const bool is_ours = kind == Planted::File &&
                             (test::contains(entry, "0_0") || path.filename() == ".metadata");
        if (is_ours) continue;  // a file of that name may be ours
        scene.plant(path, kind);
        const std::string what = told(output, path, kind, command);
        const auto error = scene.error_of(command);
        BOOST_TEST_REQUIRE(error.has_value(), what);
        const bool is_told = error->code() == ErrorCode::AlreadyExists ||
                             error->code() == ErrorCode::NotFound ||  // parts are missing
                             error->code() == ErrorCode::IoFailure;
        BOOST_TEST(is_told, what << ": " << error->what());
        BOOST_TEST(scene.is_untouched(path), what << ": " << error->what());
        if (command == Command::Clean) {
          BOOST_TEST(test::contains(error->where().file, path.parent_path().string()),
                     what << ": " << error->what());
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_several_processes_write_has_one_name) {
  const Scene scene(kOutputs[2]);
  scene.start_first();
  scene.plant(scene.holder() / "content", Planted::SecondName);
  const auto error = scene.error_of(Command::Share);
  BOOST_REQUIRE(error);
  BOOST_TEST(scene.is_untouched(scene.holder() / "content"));
  BOOST_TEST(test::read_file(scene.victim() / "f") == "precious");
}

BOOST_AUTO_TEST_CASE(links_in_folders_above_a_destination_are_followed) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_symlink("real", folder / "link");
  ckpt::ConvertOptions options;
  options.format = Format::TorchDist;
  ckpt::convert(test::golden("torch_save_zip/zip.pt"), folder / "link/out", options);
  BOOST_TEST(fs::exists(folder / "real/out/.metadata"));
  BOOST_TEST(!ckpt::Staging::clean(folder / "link/out"));
}

BOOST_AUTO_TEST_CASE(a_destination_that_is_a_link_is_replaced_itself) {
  for (const Output& output : kOutputs) {
    for (const Planted kind : {Planted::LinkToFolder, Planted::LinkToFile, Planted::Dangling}) {
      const Scene scene(output);
      scene.plant(scene.out(), kind);
      BOOST_TEST(scene.error_of(Command::Plain).has_value());
      BOOST_TEST(scene.is_untouched(scene.out()));
      BOOST_TEST(fs::is_symlink(scene.out()));
      BOOST_TEST(!scene.error_of(Command::Force));
      BOOST_TEST(scene.is_untouched());
      BOOST_TEST(!fs::is_symlink(scene.out()));
      BOOST_TEST(!fs::exists(scene.holder()));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_tracker_and_what_it_is_made_of_are_refused_unless_they_are_ours) {
  for (const char* entry : {"tracker.txt", ".tracker.txt.new"}) {
    for (const Planted kind : kPlanted) {
      const TemporaryFolder root;
      const Scene scene(kOutputs[0]);
      ckpt::FolderConvention convention = test::kConvention;
      convention.tracker = "tracker.txt";
      scene.plant(root / entry, kind);
      const std::string what = told(kOutputs[0], root / entry, kind, Command::Plain);
      const auto error = test::error_of([&] { ckpt::latest_iteration(root.path(), convention); });
      BOOST_TEST_REQUIRE(error.has_value(), what);
      BOOST_TEST(error->where().file.ends_with(entry), what << ": " << error->what());
      const auto set =
          test::error_of([&] { ckpt::set_latest(root.path(), "iter_0000003", convention); });
      BOOST_TEST_REQUIRE(set.has_value(), what);
      BOOST_TEST(scene.is_untouched(root / entry), what);
      if (entry[0] != '.') continue;
      BOOST_TEST(test::error_of([&] { ckpt::clean_latest(root.path(), convention); }).has_value());
      BOOST_TEST(scene.is_untouched(root / entry), what);
    }
  }
}

namespace {

// Puts a link to the victim in place of a folder, in front of one of the calls.
class Swapping final : public ckpt::SystemCalls {
 public:
  Swapping(fs::path folder, fs::path victim, uint64_t number)
      : folder_(std::move(folder)), victim_(std::move(victim)), number_(number) {}

  bool has_swapped() const { return has_swapped_; }
  uint64_t count() const { return count_; }

  int openat(int folder, const char* path, int flags, mode_t mode) override {
    count_call();
    return SystemCalls::openat(folder, path, flags, mode);
  }
  int fstatat(int folder, const char* path, struct stat& status, int flags) override {
    count_call();
    return SystemCalls::fstatat(folder, path, status, flags);
  }
  int list(int folder, std::vector<std::string>& names) override {
    count_call();
    return SystemCalls::list(folder, names);
  }
  int mkdirat(int folder, const char* path, mode_t mode) override {
    count_call();
    return SystemCalls::mkdirat(folder, path, mode);
  }
  int unlinkat(int folder, const char* path, int flags) override {
    count_call();
    return SystemCalls::unlinkat(folder, path, flags);
  }
  int renameat2(Name source, Name target, unsigned flags) override {
    count_call();
    return SystemCalls::renameat2(source, target, flags);
  }
  int fsync(int) override { return 0; }

 private:
  void count_call() {
    if (count_++ < number_ || has_swapped_ || !fs::is_directory(folder_)) return;
    fs::rename(folder_, folder_.string() + ".moved");
    fs::create_symlink(victim_, folder_);
    has_swapped_ = true;
  }

  fs::path folder_, victim_;
  uint64_t number_, count_ = 0;
  bool has_swapped_ = false;
};

// Returns whether there was such a call.
bool swap_at(uint64_t number, Command command, const char* swapped) {
  Scene scene(kOutputs[0]);
  if (command == Command::Clean || command == Command::Share) scene.start_first();
  scene.watch();
  const fs::path folder = *swapped == 0 ? scene.holder() : scene.holder() / swapped;
  Swapping calls(folder, scene.victim(), number);
  std::optional<ckpt::Error> error;
  {
    const ckpt::InstalledSystemCalls installed(calls);
    error = scene.error_of(command);
  }
  const std::string what = std::string(kOptions[static_cast<size_t>(command)]) + ", '" + swapped +
                           "' is swapped in front of call " + std::to_string(number) + ": " +
                           (error ? error->what() : "done");
  BOOST_TEST_REQUIRE(scene.is_untouched(), what);
  // What is published is what was written.
  const bool is_published = fs::exists(fs::symlink_status(scene.out()));
  BOOST_TEST_REQUIRE((!is_published || fs::exists(scene.out() / ".metadata")), what);
  BOOST_TEST_REQUIRE(!fs::is_symlink(scene.out()), what);
  return number < calls.count();
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_replaced_by_a_link_meanwhile_leads_nowhere) {
  for (const Command command : {Command::Plain, Command::Clean, Command::Share, Command::Resume}) {
    for (const char* swapped : {"", "content"}) {
      for (uint64_t number = 0; swap_at(number, command, swapped); number += 3) {
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
