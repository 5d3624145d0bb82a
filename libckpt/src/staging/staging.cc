#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "io/directory.h"
#include "io/publish.h"
#include "remote/remote_folder.h"
#include "staging/job_record.h"
#include "staging/staging_holder.h"
#include "staging/store_staging.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

// A recovery may remove what a destination was, which takes its time.
constexpr std::chrono::minutes kRecoveryTimeMax(1);
constexpr std::chrono::seconds kTidyTimeMax(1);
constexpr std::chrono::milliseconds kPoll(20);

[[noreturn]] void throw_busy(const fs::path& holder) {
  throw Error(ErrorCode::AlreadyExists, {holder.string()},
              "another process is writing this destination",
              "if no process is, remove that folder");
}

LockFile lock_or_refuse(const Place& lock) {
  auto held = LockFile::try_lock(lock);
  if (!held) throw_busy(lock.path().parent_path());
  return std::move(*held);
}

// Pieces that interrupted processes have finished.
size_t count_finished(const Place& holder) {
  size_t count = 0;
  for (const std::string& name : Directory::open(holder).list()) {
    const bool is_record = name.starts_with("part-") && name.find('.') == name.npos;
    const auto record = is_record ? read_part_record(holder / name) : std::nullopt;
    if (record) count += record->pieces.size();
  }
  return count;
}

std::string who_continues(const std::string& left) {
  const auto job = JobIdentity::parse(left);
  if (!job || job->processes == 1) return "--resume continues";
  return "its " + std::to_string(job->processes) + " processes continue";
}

StagingRecord record_of(const StagingOptions& options) { return {options.job, options.files}; }

// No content is to outlive a loss of power without the record of what it is.
void agree_on_job(const StagingHolder& holder, const StagingOptions& options) {
  note_first(holder.folder, "job", options.share.rank, record_of(options).text());
  Directory::open(holder.folder).sync();
  // Another client of a network file system may have proposed, and this one not see it yet.
  const auto give_up = std::chrono::steady_clock::now() + kRecoveryTimeMax;
  while (!is_there(holder.folder / "job")) {
    if (std::chrono::steady_clock::now() > give_up) {
      throw Error(ErrorCode::IoFailure, {holder.folder.path().string()},
                  "the record of what is written here is there, and cannot be seen",
                  "the file system shows names too late; see docs/distributed.md");
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void refuse_other_job(const StagingHolder& holder, const std::string& wanted) {
  const auto record = holder.record();
  ckpt::refuse_other_job(holder.folder.path().string(), record ? record->job : "", wanted);
}

}  // namespace

struct Staging::State {
  State(const fs::path& destination, StagingOptions made_options)
      : place(destination), options(std::move(made_options)) {}

  ~State() {
    reserve.give_back();
    try {
      clean_up();
    } catch (const std::exception&) {  // the next run finds what is left
    }
  }

  void clean_up() {
    if (!holder) return;
    const bool keeps = options.resume || is_shared();
    if (lock && is_leader && !is_committed) remove_file(holder->folder / "leader");
    if (lock && owns_work && (is_committed || !keeps)) holder->remove_work();
    if (lock) return holder->leave(std::move(*lock), std::move(part_locks));
    if (made_holder) holder->remove_unlocked();
  }

  bool is_shared() const { return options.share.world_size > 1; }

  void refuse_existing() const {
    if (options.force || !is_there(place.destination())) return;
    throw Error(ErrorCode::AlreadyExists, {place.shown()}, "the destination exists",
                "--force replaces it");
  }

  void enter() {
    place.refuse_overlap(options.source);
    if (is_shared()) {
      recover_publication();
      refuse_published();
    }
    if (!is_there(place.holder())) refuse_existing();
    if (is_shared()) {
      lock_part();
      agree_on_job(*holder, options);
      refuse_other_job(*holder, options.job);
    } else {
      enter_holder();
      lock = lock_or_refuse(holder->lock);
      made_holder = false;
      holder->recover();
      refuse_existing();
      take_over();
      owns_work = true;
      replace_text(holder->folder, "job", record_of(options).text());
    }
    make_output();
  }

  void enter_holder() {
    auto [made, is_new] = StagingHolder::make(place);
    holder.emplace(std::move(made));
    made_holder = is_new;
  }

  void make_output() {
    const bool may_be_there = is_shared() || options.resume;
    if (!options.single_file && !make_folder(holder->content) && !may_be_there) {
      refuse_foreign(holder->content.path(), "has come meanwhile");
    }
    hold_output();
  }

  void hold_output() {
    output = options.single_file ? holder->content : Place::held(holder->content);
  }

  void lock_part() {
    while (!part_lock) {
      enter_holder();
      part_lock = try_lock_part();
      refuse_published();
    }
    made_holder = false;
  }

  // Who leads holds all parts, and leads only where all are whole: this one is not at work then.
  // None where the folder has gone.
  std::optional<LockFile> try_lock_part() const {
    const Place record_place = holder->folder / ("part-" + std::to_string(options.share.rank));
    const auto give_up = std::chrono::steady_clock::now() + kRecoveryTimeMax;
    while (true) {
      try {
        auto held = LockFile::try_lock(holder->part_lock(options.share.rank));
        if (held) return held;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::NotFound) throw;
        return std::nullopt;
      }
      const auto record = read_part_record(record_place);
      if (is_published_by_others()) return std::nullopt;  // after that look: records go last
      const bool may_wait = record && record->is_complete;
      if (!may_wait || std::chrono::steady_clock::now() > give_up) throw_busy(place.holder_path());
      std::this_thread::sleep_for(kPoll);
    }
  }

  bool is_published_by_others() const { return !options.force && is_there(place.destination()); }

  // Of several processes: the others have published, if they have, and this one leaves nothing.
  void refuse_published() {
    if (!is_published_by_others()) return;
    if (part_lock) remove_file(holder->part_lock(options.share.rank));
    part_lock.reset();
    // The one who published may be at it just now, and not know of this one's lock.
    const auto give_up = std::chrono::steady_clock::now() + kTidyTimeMax;
    do {
      StagingHolder::tidy(place);
      if (!is_there(place.holder())) break;
      std::this_thread::sleep_for(kPoll);
    } while (std::chrono::steady_clock::now() < give_up);
    refuse_existing();
  }

  // Of several processes the one who published may have been killed meanwhile: before the others
  // do anything, one of them sees what came of that. Parts of what is published are gone then.
  void recover_publication() const {
    const auto give_up = std::chrono::steady_clock::now() + kRecoveryTimeMax;
    while (true) {
      const auto left = StagingHolder::open(place);
      if (!left || !is_there(left->publishing)) return;
      if (auto leader = left->try_lock()) {
        left->recover();
        remove_file(left->lock);  // where the system has no locks, nobody else could remove it
        return left->leave(std::move(*leader));
      }
      if (std::chrono::steady_clock::now() > give_up) throw_busy(place.holder_path());
      std::this_thread::sleep_for(kPoll);
    }
  }

  // All of them, or none.
  bool try_lock_parts() {
    for (uint32_t rank = 0; rank < options.share.world_size; ++rank) {
      auto held = LockFile::try_lock(holder->part_lock(rank));
      if (!held) {
        part_locks.clear();
        return false;
      }
      part_locks.push_back(std::move(*held));
    }
    return true;
  }

  static std::string leader_text(const LockFile& held) {
    return std::string(kTextMark) + "leader " + held.domain() + "\n";
  }

  // Where locks do not reach all machines, several processes hold them: one leads. What a killed
  // one has noted that this lock would have excluded counts for nothing.
  bool try_to_claim(const LockFile& held) {
    const std::string text = leader_text(held);
    is_leader = note_first(holder->folder, "leader", options.share.rank, text) ||
                text_of(holder->folder / "leader") == text;
    if (is_leader) return true;
    const auto now = std::chrono::steady_clock::now();
    if (!waits_since) waits_since = now;
    if (now - *waits_since < kRecoveryTimeMax) return false;
    throw Error(ErrorCode::AlreadyExists, {holder->folder.path().string()},
                "a process of another machine publishes this, or was killed at it",
                "if none is at work, --finish publishes it");
  }

  Lead try_lead() {
    std::optional<LockFile> held = holder->try_lock();
    if (!held) return Lead::No;
    holder->recover();
    if (!is_there(holder->folder / "job")) {  // another one has committed meanwhile
      holder->leave(std::move(*held));
      return Lead::No;
    }
    if (held->is_of_the_system() && !try_lock_parts()) return Lead::OthersAreAtWork;
    if (!try_to_claim(*held)) {
      part_locks.clear();
      return Lead::OthersAreAtWork;
    }
    lock = std::move(held);
    owns_work = true;
    return Lead::Yes;
  }

  // What an attempt left that ended without its destructors.
  void take_over() const {
    const auto record = holder->record();
    if (!record || record->job.empty()) return holder->remove_work();
    if (options.resume && !options.job.empty()) return refuse_other_job(*holder, options.job);
    throw Error(ErrorCode::AlreadyExists, {holder->folder.path().string()},
                "left by an interrupted run; finished parts: " +
                    std::to_string(count_finished(holder->folder)),
                who_continues(record->job) + " it, --clean removes it");
  }

  // What is renamed into place is what was written, and nothing that took its name since.
  void refuse_other_than_written(const Place& named) const {
    const auto found = state_of_entry(named);
    if (found && found->inode == written_inode) return;
    refuse_foreign(named.path(), "has taken the place of what was written");
  }

  void publish() {
    written_inode = state_of_entry(output).value().inode;
    refuse_other_than_written(holder->content);
    const bool replaces = options.force && is_there(holder->destination);
    if (replaces || is_shared() || is_attached) {
      replace_text(holder->folder, "publishing", std::to_string(written_inode));
    }
    if (!replaces) {
      rename_to_free_name(holder->content, holder->destination);
      return undo_unless_synced([&] { rename_to_free_name(holder->destination, holder->content); });
    }
    if (!exchange_names(holder->content, holder->destination)) return publish_in_two_steps();
    // `content` is now what the destination was; the destructor removes it.
    undo_unless_synced([&] { exchange_names(holder->content, holder->destination); });
  }

  void publish_in_two_steps() {
    // The holder outlives a loss of power before it takes in what must not be lost.
    Directory::open(holder->parent).sync();
    rename_to_free_name(holder->destination, holder->replaced);
    const auto put_back = [&] { rename_to_free_name(holder->replaced, holder->destination); };
    try {
      rename_to_free_name(holder->content, holder->destination);
    } catch (...) {
      put_back();
      throw;
    }
    undo_unless_synced([&] {
      rename_to_free_name(holder->destination, holder->content);
      put_back();
    });
  }

  // Who is told that nothing was published must not find it published.
  template <typename Undo>
  void undo_unless_synced(Undo undo) {
    try {
      refuse_other_than_written(holder->destination);
      Directory::open(holder->parent).sync();
    } catch (...) {
      owns_work = false;  // should undo() fail, too, the next run sees what happened
      undo();
      owns_work = true;
      throw;
    }
  }

  StagingPlace place;
  StagingOptions options;
  std::optional<StagingHolder> holder;
  Place output{std::filesystem::path()};
  uint64_t written_inode = 0;
  DescriptorReserve reserve;          // for clean_up()
  std::optional<LockFile> lock;       // the right to commit and to clean up
  std::optional<LockFile> part_lock;  // of one process of several
  std::vector<LockFile> part_locks;   // of all, while one of them commits
  bool made_holder = false;           // and has not locked it yet
  std::optional<std::chrono::steady_clock::time_point> waits_since;  // for who leads
  bool is_leader = false;
  bool owns_work = false;
  bool is_attached = false;
  bool is_committed = false;
};

Staging::Staging(std::unique_ptr<State> state) : state_(std::move(state)) {}
Staging::Staging(Staging&&) noexcept = default;
Staging::~Staging() = default;

Staging Staging::create(const fs::path& destination, StagingOptions options) {
  auto state = std::make_unique<State>(destination, std::move(options));
  state->enter();
  return Staging(std::move(state));
}

Staging Staging::attach(const fs::path& destination, StagingOptions options) {
  auto state = std::make_unique<State>(destination, std::move(options));
  const StagingPlace& place = state->place;
  const auto left_holder = [&] {
    auto holder = StagingHolder::open(place);
    const auto record = holder ? holder->record() : std::nullopt;
    if (record && !record->job.empty()) return std::move(*holder);
    throw Error(ErrorCode::NotFound, {place.holder_path().string()},
                "no process has left any parts here");
  };
  const StagingHolder found = left_holder();
  state->options.resume = true;  // nothing is lost if it cannot be committed
  state->refuse_existing();
  state->holder = found;
  state->lock = lock_or_refuse(found.lock);
  found.recover();
  left_holder();  // else it was published
  refuse_other_job(found, state->options.job);
  if (state->lock->is_of_the_system() && !state->try_lock_parts()) {
    throw_busy(place.holder_path());
  }
  state->hold_output();
  replace_text(found.folder, "leader", State::leader_text(*state->lock));
  state->is_leader = true;
  state->owns_work = true;
  state->is_attached = true;
  return Staging(std::move(state));
}

bool Staging::is_published(const fs::path& destination, const std::string& job) {
  return !job.empty() && attached_text(StagingPlace(destination).path()) == job;
}

bool Staging::clean(const fs::path& destination) {
  if (is_in_store(destination)) return StoreStaging::clean(destination);
  const StagingPlace place(destination);
  const auto holder = StagingHolder::open(place);
  if (!holder) return false;
  std::vector<LockFile> locks = holder->try_lock_all();
  if (locks.empty()) throw_busy(place.holder_path());
  holder->recover();
  holder->remove_work();
  LockFile leader = std::move(locks.front());
  holder->leave(std::move(leader), std::move(locks));
  return true;
}

bool Staging::is_left(const fs::path& destination) {
  if (is_in_store(destination)) return StoreStaging::is_left(destination);
  return StagingHolder::open(StagingPlace(destination)).has_value();
}

const fs::path& Staging::folder() const { return state_->output.path(); }
const Place& Staging::place() const { return state_->output; }
const Place& Staging::notes() const { return state_->holder->folder; }

void Staging::leave_part() { state_->part_lock.reset(); }

Staging::Lead Staging::try_lead() {
  if (state_->lock) return Lead::Yes;
  try {
    return state_->try_lead();
  } catch (const Error& error) {
    // Where locks do not reach other machines one of them has published meanwhile.
    const bool has_gone =
        error.code() == ErrorCode::NotFound || !is_there(state_->holder->folder / "job");
    if (!has_gone || !state_->is_published_by_others()) throw;
    state_->part_locks.clear();
    return Lead::No;
  }
}

void Staging::commit() {
  if (state_->is_committed) {
    throw Error(ErrorCode::InvalidArgument, {state_->place.shown()}, "was already committed");
  }
  // For who is started again when all is done; without it they say that it exists.
  if (!state_->options.job.empty()) attach_text(state_->output, state_->options.job);
  sync_tree(state_->output);
  state_->publish();
  state_->is_committed = true;
}

}  // namespace ckpt
