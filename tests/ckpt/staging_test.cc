#include <ckpt/staging.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <map>

#include "io/publish.h"
#include "io/system_calls.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

using ckpt::ErrorCode;
using ckpt::Staging;
using test::error_of;
using test::TemporaryFolder;
using test::tree_of;
using test::write_file;
using Tree = std::map<std::string, std::string>;

namespace {

std::optional<ckpt::Error> create_error(const fs::path& destination,
                                        ckpt::StagingOptions options = {}) {
  return error_of([&] { Staging::create(destination, std::move(options)); });
}

void stage(const fs::path& destination, const std::string& content,
           ckpt::StagingOptions options = {}) {
  const bool single_file = options.single_file;
  Staging staging = Staging::create(destination, std::move(options));
  write_file(single_file ? staging.folder() : staging.folder() / "f", content);
  staging.commit();
}

// As NFS: no rename that leaves alone what is there, and a file that is open keeps a name.
class NetworkCalls final : public ckpt::SystemCalls {
 public:
  fs::path comes_meanwhile;    // made by another process, as late as can be
  bool has_forgotten = false;  // folders that are open, because another machine removed them

  int fsync(int) override { return 0; }
  int openat(int folder, const char* path, int flags, mode_t mode) override {
    const int file = SystemCalls::openat(folder, path, flags, mode);
    if (file >= 0) open_[file] = fs::read_symlink("/proc/self/fd/" + std::to_string(file));
    return file;
  }
  int close(int file) override {
    const fs::path name = open_.extract(file).mapped();
    const bool is_kept = name.filename().string().starts_with(".nfs");
    if (is_kept && std::ranges::count(open_, name, &Open::value_type::second) == 0) {
      fs::remove(name);
    }
    return SystemCalls::close(file);
  }
  int unlinkat(int folder, const char* path, int flags) override {
    const fs::path at = fs::read_symlink("/proc/self/fd/" + std::to_string(folder)) / path;
    const fs::path kept = at.parent_path() / (".nfs" + std::to_string(++count_));
    const auto is_it = [&](const auto& open) { return open.second == at; };
    if (flags != 0 || std::ranges::none_of(open_, is_it)) {
      return SystemCalls::unlinkat(folder, path, flags);
    }
    fs::rename(at, kept);
    for (auto& [file, name] : open_) name = name == at ? kept : name;
    return 0;
  }
  int list(int folder, std::vector<std::string>& names) override {
    errno = ENOENT;
    return has_forgotten ? -1 : SystemCalls::list(folder, names);
  }
  int linkat(Name source, Name target) override {
    come();
    return SystemCalls::linkat(source, target);
  }
  int renameat2(Name source, Name target, unsigned flags) override {
    if (flags == 0) come();
    errno = EINVAL;
    return flags != 0 ? -1 : SystemCalls::renameat2(source, target, flags);
  }

 private:
  using Open = std::map<int, fs::path>;
  void come() const {
    if (!comes_meanwhile.empty()) write_file(comes_meanwhile, "another's");
  }
  Open open_;
  int count_ = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(staging)

BOOST_AUTO_TEST_CASE(a_commit_publishes_a_folder_with_all_below_it_and_leaves_nothing_else) {
  const TemporaryFolder temporary;
  {
    Staging staging = Staging::create(temporary / "out");
    write_file(staging.folder() / "a", "1");
    write_file(staging.folder() / "deep" / "er" / "b", "2");
    BOOST_TEST(!fs::exists(temporary / "out"));
    BOOST_TEST(fs::exists(temporary / ".out.shardwise-partial"));
    staging.commit();
    BOOST_TEST(fs::exists(temporary / "out"));
  }
  const Tree expected = {{"out", "/"},
                         {"out/a", "1"},
                         {"out/deep", "/"},
                         {"out/deep/er", "/"},
                         {"out/deep/er/b", "2"}};
  BOOST_TEST((tree_of(temporary.path()) == expected));
}

BOOST_AUTO_TEST_CASE(a_commit_publishes_a_single_file) {
  const TemporaryFolder temporary;
  stage(temporary / "out.pt", "content", {.single_file = true, .source = {}});
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out.pt", "content"}}));
}

BOOST_AUTO_TEST_CASE(without_a_commit_nothing_is_left) {
  const TemporaryFolder temporary;
  {
    Staging staging = Staging::create(temporary / "out");
    write_file(staging.folder() / "deep" / "b", "2");
    Staging moved = std::move(staging);
    BOOST_TEST(fs::exists(moved.folder() / "deep" / "b"));
  }
  BOOST_TEST(tree_of(temporary.path()).empty());
}

BOOST_AUTO_TEST_CASE(an_existing_destination_is_refused_and_untouched) {
  const TemporaryFolder temporary;
  write_file(temporary / "out/f", "old");
  fs::create_symlink("nowhere", temporary / "link");
  for (const std::string name : {"out", "out/", "link"}) {
    const auto error = create_error(temporary / name);
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
    BOOST_TEST(!error->hint().empty());
  }
  fs::remove(temporary / "link");
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "old"}}));
}

BOOST_AUTO_TEST_CASE(force_replaces_what_was_there_by_what_is_complete) {
  const TemporaryFolder temporary;
  write_file(temporary / "out/old/f", "old");
  {
    Staging staging = Staging::create(temporary / "out", {.force = true, .source = {}});
    write_file(staging.folder() / "f", "new");
    BOOST_TEST(test::read_file(temporary / "out/old/f") == "old");  // until the commit
  }
  BOOST_TEST(test::read_file(temporary / "out/old/f") == "old");  // and without one
  stage(temporary / "out", "new", {.force = true, .source = {}});
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "new"}}));
  stage(temporary / "out", "a file", {.force = true, .single_file = true, .source = {}});
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "a file"}}));
  fs::remove(temporary / "out");
  stage(temporary / "out", "newer", {.force = true, .source = {}});  // nothing to replace
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "newer"}}));
}

BOOST_AUTO_TEST_CASE(a_destination_that_appears_meanwhile_is_not_overwritten) {
  const TemporaryFolder temporary;
  {
    Staging staging = Staging::create(temporary / "out");
    write_file(staging.folder() / "f", "mine");
    fs::create_directory(temporary / "out");
    const auto error = error_of([&] { staging.commit(); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
  }
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}}));
}

BOOST_AUTO_TEST_CASE(a_destination_in_or_around_the_source_is_refused) {
  const TemporaryFolder temporary;
  write_file(temporary / "root/iter/f", "x");
  fs::create_directory_symlink(temporary / "root", temporary / "link");
  const std::string source = (temporary / "root/iter").string();
  for (const std::string name :
       {"root/iter", "root/iter/out", "root/iter/../iter/out", "link/iter/out", "root", ""}) {
    for (const bool force : {false, true}) {
      const auto error = create_error(temporary / name, {.force = force, .source = source});
      BOOST_TEST_REQUIRE(error.has_value(), name);
      BOOST_TEST((error->code() == ErrorCode::InvalidArgument), name);
    }
  }
  const std::string file = (temporary / "root/iter/f").string();
  BOOST_TEST(create_error(temporary / "root/iter/f", {.force = true, .source = file}).has_value());
  // Beside it, also under a name that it starts with, there is room.
  stage(temporary / "root/iter2", "y", {.source = source});
  stage(temporary / "root/it", "y", {.source = source});
}

BOOST_AUTO_TEST_CASE(names_that_are_no_destination_are_refused) {
  const TemporaryFolder temporary;
  for (const fs::path& path : {fs::path("/"), temporary / ".", temporary / ".."}) {
    const auto error = create_error(path);
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ErrorCode::InvalidArgument));
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_or_not_writable_is_an_error) {
  const TemporaryFolder temporary;
  const auto absent = create_error(temporary / "no" / "out");
  BOOST_REQUIRE(absent);
  BOOST_TEST((absent->code() == ErrorCode::NotFound));
  BOOST_TEST(tree_of(temporary.path()).empty());
  write_file(temporary / "file", "x");
  BOOST_TEST(create_error(temporary / "file/out").has_value());
  const fs::path unwritable = "/sys/kernel/out";  // also for root
  if (fs::exists("/sys/kernel")) {
    const auto error = create_error(unwritable);
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ErrorCode::IoFailure));
  }
}

BOOST_AUTO_TEST_CASE(two_writers_of_one_destination_exclude_each_other) {
  const TemporaryFolder temporary;
  {
    Staging first = Staging::create(temporary / "out");
    write_file(first.folder() / "f", "first");
    const auto error = create_error(temporary / "out");
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
    BOOST_TEST(test::contains(error->problem(), "another process"));
    BOOST_TEST(test::read_file(first.folder() / "f") == "first");
    first.commit();
  }
  BOOST_TEST(test::read_file(temporary / "out/f") == "first");
}

BOOST_AUTO_TEST_CASE(what_a_killed_process_left_is_removed) {
  const TemporaryFolder temporary;
  const pid_t child = fork();
  if (child == 0) {
    Staging staging = Staging::create(temporary / "out");
    write_file(staging.folder() / "left over", "x");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  BOOST_REQUIRE(WIFSIGNALED(status));
  BOOST_TEST(fs::exists(temporary / ".out.shardwise-partial"));
  stage(temporary / "out", "new");
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "new"}}));
}

BOOST_AUTO_TEST_CASE(a_replaced_folder_is_put_back_if_the_process_ended_between_two_renames) {
  const TemporaryFolder temporary;
  write_file(temporary / ".out.shardwise-partial/job", "shardwise staging\n");
  write_file(temporary / ".out.shardwise-partial/publishing", "1");
  write_file(temporary / ".out.shardwise-partial/replaced/f", "old");
  write_file(temporary / ".out.shardwise-partial/content/f", "new");
  const auto error = create_error(temporary / "out");
  BOOST_TEST(test::read_file(temporary / "out/f") == "old");
  // It is there again, so that whoever comes is told.
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
}

BOOST_AUTO_TEST_CASE(what_was_left_of_a_job_is_kept_until_somebody_decides) {
  const TemporaryFolder temporary;
  const ckpt::StagingOptions job{.job = "shardwise 1\nplan a\nsource b\nprocesses 1\n",
                                 .resume = true};
  { write_file(Staging::create(temporary / "out", job).folder() / "f", "finished"); }
  const auto left = create_error(temporary / "out");
  BOOST_REQUIRE(left);
  BOOST_TEST((left->code() == ErrorCode::AlreadyExists));
  BOOST_TEST(test::contains(left->hint(), "--resume"));
  ckpt::StagingOptions other = job;
  other.job = "shardwise 1\nplan a\nsource c\nprocesses 1\n";
  const auto refused = create_error(temporary / "out", other);
  BOOST_REQUIRE(refused);
  BOOST_TEST(test::contains(refused->problem(), "from one that has changed"));
  {
    Staging staging = Staging::create(temporary / "out", job);
    BOOST_TEST(test::read_file(staging.folder() / "f") == "finished");
    staging.commit();
  }
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "finished"}}));
}

BOOST_AUTO_TEST_CASE(cleaning_removes_what_is_left_but_not_from_under_a_process) {
  const TemporaryFolder temporary;
  BOOST_TEST(!Staging::clean(temporary / "out"));
  {
    const ckpt::StagingOptions part{.job = "a job", .share = {1, 2}};
    const Staging staging = Staging::create(temporary / "out", part);
    BOOST_TEST(error_of([&] { Staging::clean(temporary / "out"); }).has_value());
    BOOST_TEST(create_error(temporary / "out", part).has_value());  // the same part, twice at once
  }
  BOOST_TEST(Staging::clean(temporary / "out"));
  BOOST_TEST(tree_of(temporary.path()).empty());
}

BOOST_AUTO_TEST_CASE(what_a_destination_was_is_never_removed_where_both_are_there) {
  const TemporaryFolder temporary;
  write_file(temporary / ".out.shardwise-partial/job", "shardwise staging\n");
  write_file(temporary / ".out.shardwise-partial/publishing", "1");
  write_file(temporary / ".out.shardwise-partial/replaced/f", "old");
  write_file(temporary / "out/f", "somebody else's");
  const auto error = create_error(temporary / "out", {.force = true});
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
  BOOST_TEST(test::read_file(temporary / ".out.shardwise-partial/replaced/f") == "old");
}

BOOST_AUTO_TEST_CASE(long_names_that_begin_alike_do_not_share_a_staging_folder) {
  const TemporaryFolder temporary;
  const std::string start(220, 'n');
  Staging first = Staging::create(temporary / (start + "1"));
  Staging second = Staging::create(temporary / (start + "2"));
  BOOST_TEST(first.folder() != second.folder());
}

BOOST_AUTO_TEST_CASE(a_long_name_leaves_room_for_the_staging_folder) {
  const TemporaryFolder temporary;
  const std::string name(250, 'n');
  stage(temporary / name, "x");
  BOOST_TEST(fs::exists(temporary / name / "f"));
}

BOOST_AUTO_TEST_CASE(where_a_rename_cannot_refuse_what_comes_meanwhile_is_not_replaced) {
  const TemporaryFolder temporary;
  write_file(temporary / "mine", "mine");
  const ckpt::Place folder = ckpt::Place::held(temporary.path());
  NetworkCalls calls;
  const ckpt::InstalledSystemCalls installed(calls);
  ckpt::rename_to_free_name(folder / "mine", folder / "free");
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"free", "mine"}}));
  calls.comes_meanwhile = temporary / "taken";
  const auto error =
      error_of([&] { ckpt::rename_to_free_name(folder / "free", folder / "taken"); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::AlreadyExists));
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"free", "mine"}, {"taken", "another's"}}));
}

BOOST_AUTO_TEST_CASE(what_a_network_keeps_of_open_files_is_neither_foreign_nor_left) {
  const TemporaryFolder temporary;
  NetworkCalls calls;
  const ckpt::InstalledSystemCalls installed(calls);
  const ckpt::StagingOptions options{
      .job = "shardwise 1\n", .share = {.rank = 0, .world_size = 2}, .files = {"f"}};
  {
    Staging mine = Staging::create(temporary / "out", options);
    ckpt::StagingOptions others = options;
    others.share.rank = 1;
    Staging other = Staging::create(temporary / "out", others);
    write_file(mine.folder() / "f", "x");
    mine.leave_part();
    other.leave_part();
    BOOST_REQUIRE((mine.try_lead() == Staging::Lead::Yes));
    mine.commit();
  }
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "x"}}));
}

BOOST_AUTO_TEST_CASE(a_folder_that_another_machine_removed_when_it_published_is_no_error) {
  const TemporaryFolder temporary;
  NetworkCalls calls;
  const ckpt::InstalledSystemCalls installed(calls);
  const ckpt::StagingOptions options{
      .job = "shardwise 1\n", .share = {.rank = 0, .world_size = 2}, .files = {"f"}};
  Staging mine = Staging::create(temporary / "out", options);
  mine.leave_part();
  calls.has_forgotten = true;
  BOOST_TEST(error_of([&] { mine.try_lead(); }).has_value());
  write_file(temporary / "out/f", "x");
  BOOST_TEST((mine.try_lead() == Staging::Lead::No));
}

BOOST_AUTO_TEST_CASE(who_publishes_on_another_machine_is_waited_for_and_followed_by_finish_alone) {
  const TemporaryFolder temporary;
  const ckpt::StagingOptions options{
      .job = "shardwise 1\n", .share = {.rank = 0, .world_size = 2}, .files = {"f"}};
  {
    Staging mine = Staging::create(temporary / "out", options);
    write_file(mine.folder() / "f", "x");
    mine.leave_part();
    write_file(temporary / ".out.shardwise-partial/leader", "shardwise leader another 7\n");
    BOOST_TEST((mine.try_lead() == Staging::Lead::OthersAreAtWork));
    fs::remove(temporary / ".out.shardwise-partial/leader");
    BOOST_TEST((mine.try_lead() == Staging::Lead::Yes));
  }
  BOOST_TEST(!fs::exists(temporary / ".out.shardwise-partial/leader"));  // was not published
  write_file(temporary / ".out.shardwise-partial/leader", "shardwise leader another 7\n");
  Staging::attach(temporary / "out", options).commit();
  BOOST_TEST((tree_of(temporary.path()) == Tree{{"out", "/"}, {"out/f", "x"}}));
}

BOOST_AUTO_TEST_CASE(a_second_commit_is_refused) {
  const TemporaryFolder temporary;
  Staging staging = Staging::create(temporary / "out");
  staging.commit();
  BOOST_TEST(error_of([&] { staging.commit(); }).has_value());
  BOOST_TEST(fs::exists(temporary / "out"));
}

BOOST_AUTO_TEST_SUITE_END()
