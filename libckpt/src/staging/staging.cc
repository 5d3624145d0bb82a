#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "io/directory.h"
#include "io/publish.h"
#include "staging/job_record.h"
#include "staging/staging_place.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

// A recovery may remove what a destination was, which takes its time.
constexpr std::chrono::minutes kRecoveryTimeMax(1);
constexpr std::chrono::milliseconds kRecoveryPoll(20);

[[noreturn]] void throw_busy(const fs::path& holder) {
  throw Error(ErrorCode::AlreadyExists, {holder.string()},
              "another process is writing this destination",
              "if no process is, remove that folder");
}

LockFile lock_or_refuse(const fs::path& lock) {
  auto held = LockFile::try_lock(lock);
  if (!held) throw_busy(lock.parent_path());
  return std::move(*held);
}

// False if it was there.
bool make_holder(const fs::path& holder) {
  const bool is_new = make_folder(holder);
  if (kind_of_entry(holder) != EntryKind::Folder) {
    throw Error(ErrorCode::AlreadyExists, {holder.string()},
                "stands where the staging folder would be made");
  }
  return is_new;
}

// Pieces that interrupted processes have finished.
size_t count_finished(const fs::path& holder) {
  size_t count = 0;
  for (const std::string& name : Directory::open(holder).list()) {
    const bool is_record = name.starts_with("part-") && name.find('.') == name.npos;
    const auto record = is_record ? read_part_record(holder / name) : std::nullopt;
    if (record) count += record->pieces.size();
  }
  return count;
}

std::string who_continues(const StagingPlace& place) {
  const auto job = JobIdentity::parse(text_of(place.job).value_or(""));
  if (!job || job->processes == 1) return "--resume continues";
  return "its " + std::to_string(job->processes) + " processes continue";
}

// Of several processes the first one says what is written.
void agree_on_job(const StagingPlace& place, const StagingOptions& options) {
  if (is_there(place.job)) return;
  const fs::path proposal = place.holder / ("job-" + std::to_string(options.share.rank));
  replace_text(proposal, options.job);
  try {
    rename_to_free_name(proposal, place.job);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::AlreadyExists) throw;
    remove_tree(proposal);
  }
}

void refuse_other_job(const StagingPlace& place, const std::string& wanted) {
  const std::string found = text_of(place.job).value_or("");
  if (found == wanted) return;
  const auto other = JobIdentity::parse(found), mine = JobIdentity::parse(wanted);
  const std::string difference = other && mine ? other->difference(*mine) : "for another job";
  throw Error(ErrorCode::AlreadyExists, {place.holder.string()},
              "the unfinished output was made " + difference + ", so it cannot be continued",
              "--clean removes it");
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
    const bool keeps = options.resume || is_shared();
    if (lock && owns_work && (is_committed || !keeps)) place.remove_work();
    if (lock) return place.remove_if_empty();
    if (made_holder) remove_folder_if_empty(place.holder);
  }

  bool is_shared() const { return options.share.world_size > 1; }

  void refuse_existing() const {
    if (options.force || !is_there(place.destination)) return;
    throw Error(ErrorCode::AlreadyExists, {place.shown}, "the destination exists",
                "--force replaces it");
  }

  void enter() {
    place.refuse_overlap(options.source);
    if (is_shared()) {
      recover_publication();
      refuse_published();
    }
    if (!is_there(place.holder)) refuse_existing();
    made_holder = make_holder(place.holder);
    if (is_shared()) {
      part_lock = lock_or_refuse(place.part_lock(options.share.rank));
      made_holder = false;
      refuse_published();
      agree_on_job(place, options);
      refuse_other_job(place, options.job);
    } else {
      lock = lock_or_refuse(place.lock);
      made_holder = false;
      place.recover();
      refuse_existing();
      take_over();
      owns_work = true;
      if (!options.job.empty()) replace_text(place.job, options.job);
    }
    if (!options.single_file) make_folder(place.content);
  }

  // Of several processes: the others have published, if they have, and this one leaves nothing.
  void refuse_published() {
    if (options.force || !is_there(place.destination)) return;
    part_lock.reset();
    place.tidy();
    refuse_existing();
  }

  // Of several processes the one who published may have been killed meanwhile: before the others
  // do anything, one of them sees what came of that. Parts of what is published are gone then.
  void recover_publication() const {
    const auto give_up = std::chrono::steady_clock::now() + kRecoveryTimeMax;
    while (is_there(place.publishing)) {
      if (const auto leader = place.try_lock()) {
        place.recover();
        remove_tree(place.lock);  // where the system has no locks, nobody else could remove it
        return place.remove_if_empty();
      }
      if (std::chrono::steady_clock::now() > give_up) throw_busy(place.holder);
      std::this_thread::sleep_for(kRecoveryPoll);
    }
  }

  // All of them, or none.
  bool try_lock_parts() {
    for (uint32_t rank = 0; rank < options.share.world_size; ++rank) {
      auto held = LockFile::try_lock(place.part_lock(rank));
      if (!held) {
        part_locks.clear();
        return false;
      }
      part_locks.push_back(std::move(*held));
    }
    return true;
  }

  // What an attempt left that ended without its destructors.
  void take_over() const {
    if (!is_there(place.job)) return place.remove_work();
    if (options.resume && !options.job.empty()) return refuse_other_job(place, options.job);
    throw Error(ErrorCode::AlreadyExists, {place.holder.string()},
                "left by an interrupted run; finished parts: " +
                    std::to_string(count_finished(place.holder)),
                who_continues(place) + " it, --clean removes it");
  }

  void publish() {
    const bool replaces = options.force && is_there(place.destination);
    if (replaces || is_shared() || is_attached) {
      replace_text(place.publishing, std::to_string(state_of_entry(place.content).value().inode));
      Directory::open(place.holder).sync();
    }
    if (!replaces) return publish_new();
    if (!exchange_names(place.content, place.destination)) return publish_in_two_steps();
    // `content` is now what the destination was; the destructor removes it.
    undo_unless_synced([&] { exchange_names(place.content, place.destination); });
  }

  void publish_new() {
    rename_to_free_name(place.content, place.destination);
    undo_unless_synced([&] { rename_to_free_name(place.destination, place.content); });
  }

  void publish_in_two_steps() {
    // The holder outlives a loss of power before it takes in what must not be lost.
    Directory::open(place.destination.parent_path()).sync();
    rename_to_free_name(place.destination, place.replaced);
    const auto put_back = [&] { rename_to_free_name(place.replaced, place.destination); };
    try {
      rename_to_free_name(place.content, place.destination);
    } catch (...) {
      put_back();
      throw;
    }
    undo_unless_synced([&] {
      rename_to_free_name(place.destination, place.content);
      put_back();
    });
  }

  // Who is told that nothing was published must not find it published.
  template <typename Undo>
  void undo_unless_synced(Undo undo) {
    try {
      Directory::open(place.destination.parent_path()).sync();
    } catch (...) {
      owns_work = false;  // should undo() fail, too, the next run sees what happened
      undo();
      owns_work = true;
      throw;
    }
  }

  StagingPlace place;
  StagingOptions options;
  DescriptorReserve reserve;          // for clean_up()
  std::optional<LockFile> lock;       // the right to commit and to clean up
  std::optional<LockFile> part_lock;  // of one process of several
  std::vector<LockFile> part_locks;   // of all, while one of them commits
  bool made_holder = false;           // and has not locked it yet
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
  const auto refuse_nothing = [&] {
    if (is_there(place.job)) return;
    throw Error(ErrorCode::NotFound, {place.holder.string()}, "no process has left any parts here");
  };
  refuse_nothing();
  state->options.resume = true;  // nothing is lost if it cannot be committed
  state->refuse_existing();
  state->lock = lock_or_refuse(place.lock);
  place.recover();
  refuse_nothing();  // it was published
  refuse_other_job(place, state->options.job);
  if (state->lock->is_of_the_system() && !state->try_lock_parts()) throw_busy(place.holder);
  state->owns_work = true;
  state->is_attached = true;
  return Staging(std::move(state));
}

bool Staging::is_published(const fs::path& destination, const std::string& job) {
  return !job.empty() && attached_text(StagingPlace(destination).destination) == job;
}

bool Staging::clean(const fs::path& destination) {
  const StagingPlace place(destination);
  if (!is_there(place.holder)) return false;
  const std::vector<LockFile> locks = place.try_lock_all();
  if (locks.empty()) throw_busy(place.holder);
  place.recover();
  place.remove_work();
  place.remove_if_empty();
  return true;
}

const fs::path& Staging::folder() const { return state_->place.content; }
const fs::path& Staging::notes() const { return state_->place.holder; }

void Staging::leave_part() { state_->part_lock.reset(); }

Staging::Lead Staging::try_lead() {
  if (state_->lock) return Lead::Yes;
  std::optional<LockFile> lock = state_->place.try_lock();
  if (!lock) return Lead::No;
  state_->place.recover();
  if (!is_there(state_->place.job)) {  // another one has committed meanwhile
    state_->place.remove_if_empty();
    return Lead::No;
  }
  if (lock->is_of_the_system() && !state_->try_lock_parts()) return Lead::PartsAreAtWork;
  state_->lock = std::move(lock);
  state_->owns_work = true;
  return Lead::Yes;
}

void Staging::commit() {
  if (state_->is_committed) {
    throw Error(ErrorCode::InvalidArgument, {state_->place.shown}, "was already committed");
  }
  // For who is started again when all is done; without it they say that it exists.
  if (!state_->options.job.empty()) attach_text(state_->place.content, state_->options.job);
  sync_tree(state_->place.content);
  state_->publish();
  state_->is_committed = true;
}

}  // namespace ckpt
