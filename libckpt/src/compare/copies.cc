#include <ckpt/copies.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include <ckpt/error.h>
#include <ckpt/folder.h>

#include "work/workers.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPieceBytes = uint64_t{16} << 20;  // of one file, at a time
constexpr int kDepthMax = 64;

// The files of one side, by the name that the other side's is looked for under.
class Side {
 public:
  explicit Side(const CopySide& side) : side_(side) {
    if (side.file.empty()) {
      add_files({}, 0);
    } else {
      files_.emplace("", side.file);
    }
  }

  const std::map<std::string, std::string>& files() const { return files_; }  // name -> path
  fs::path path_of(const std::string& name) const { return side_.folder / files_.at(name); }

  std::unique_ptr<OpenedFile> open(const std::string& name) const {
    const bool may_lead_out = side_.follow_links || !side_.file.empty();
    return source_->open(side_.folder, {files_.at(name), path_of(name).string(),
                                        may_lead_out ? Links::MayLeadOut : Links::StayInside});
  }

 private:
  void add_files(const std::string& below, int depth) {
    const fs::path folder = side_.folder / below;
    for (const std::string& name : source_->list(folder)) {
      const std::string path = below.empty() ? name : below + "/" + name;
      const EntryKind kind = source_->kind_of(folder / name);
      if (kind == EntryKind::File) {
        files_.emplace(path, path);
        continue;
      }
      const bool is_link = source_->kind_of_entry(folder / name) == EntryKind::Link;
      if (kind == EntryKind::Folder && !is_link && depth < kDepthMax) {
        add_files(path, depth + 1);
        continue;
      }
      throw Error(ErrorCode::Unsupported, {(folder / name).string()},
                  is_link ? "is a link to no file, which is not compared"
                          : "is neither a file nor a folder that can be compared");
    }
  }

  const CopySide& side_;
  std::shared_ptr<const Folder> source_ = source_of(side_.folder);
  std::map<std::string, std::string> files_;
};

// A piece of a file that both have, in full length.
struct Job {
  size_t file = 0;
  ByteRange bytes;
};

class Comparison {
 public:
  Comparison(const CopySide& copy, const CopySide& original, const ExecuteOptions& options)
      : copy_(copy), original_(original), options_(options) {}

  CopyReport run() {
    list();
    compare_bytes();
    for (size_t i = 0; i < names_.size(); ++i) {
      if (first_[i] == kEqual) continue;
      differ(shown(names_[i]), "differs from byte " + std::to_string(first_[i]) + " on");
    }
    std::ranges::stable_sort(report_.differences, {}, &CopyDifference::file);
    return std::move(report_);
  }

 private:
  static constexpr uint64_t kEqual = UINT64_MAX;

  std::string shown(const std::string& name) const { return copy_.files().at(name); }

  void differ(std::string file, std::string problem) {
    report_.differences.push_back({std::move(file), std::move(problem)});
  }

  void list() {
    for (const auto& [name, path] : original_.files()) {
      if (!copy_.files().contains(name)) differ(path, "is missing in the copy");
    }
    for (const auto& [name, path] : copy_.files()) {
      if (!original_.files().contains(name)) {
        differ(path, "is not in the original");
        continue;
      }
      const auto copy = copy_.open(name), original = original_.open(name);
      ++report_.file_count;
      report_.count_bytes += copy->size_bytes();
      std::error_code unknown;
      if (fs::equivalent(copy_.path_of(name), original_.path_of(name), unknown)) {
        ++report_.linked_count;
      } else if (copy->size_bytes() != original->size_bytes()) {
        differ(path, "has " + std::to_string(copy->size_bytes()) + " bytes, the original has " +
                         std::to_string(original->size_bytes()));
      } else {
        add_jobs(copy->size_bytes());
        names_.push_back(name);
      }
    }
    first_.assign(names_.size(), kEqual);
  }

  void add_jobs(uint64_t count_bytes) {
    for (uint64_t at = 0; at < count_bytes; at += kPieceBytes) {
      jobs_.push_back({names_.size(), {at, std::min(kPieceBytes, count_bytes - at)}});
      total_bytes_ += jobs_.back().bytes.count_bytes;
    }
  }

  void compare_bytes() {
    WorkMeter meter(options_, total_bytes_, "comparing");
    run_with_slabs(jobs_.size(), options_, [&](size_t index, std::span<std::byte> slab) {
      const Job& job = jobs_[index];
      const auto copy = copy_.open(names_[job.file]), original = original_.open(names_[job.file]);
      const std::span<std::byte> a = slab.first(slab.size() / 2), b = slab.subspan(a.size());
      for (uint64_t done = 0; done < job.bytes.count_bytes;) {
        const uint64_t count = std::min<uint64_t>(a.size(), job.bytes.count_bytes - done);
        const uint64_t at = job.bytes.offset_bytes + done;
        copy->read_once(at, a.first(count));
        original->read_once(at, b.first(count));
        if (std::memcmp(a.data(), b.data(), count) != 0) {
          const auto different = std::ranges::mismatch(a.first(count), b.first(count)).in1;
          note(job.file, at + static_cast<uint64_t>(different - a.begin()));
        }
        done += count;
        meter.advance(count);
      }
    });
  }

  void note(size_t file, uint64_t offset_bytes) {
    const std::scoped_lock lock(mutex_);
    first_[file] = std::min(first_[file], offset_bytes);
  }

  Side copy_, original_;
  const ExecuteOptions& options_;
  CopyReport report_;
  std::vector<std::string> names_;  // of files that are compared
  std::vector<Job> jobs_;
  uint64_t total_bytes_ = 0;
  std::mutex mutex_;             // guards first_
  std::vector<uint64_t> first_;  // different byte, of each of names_
};

void refuse_what_makes_no_sense(const CopySide& copy, const CopySide& original) {
  const fs::path of_copy = copy.folder / copy.file, of_original = original.folder / original.file;
  const Where where{.file = of_original.string(), .key = {}};
  if (copy.file.empty() != original.file.empty()) {
    throw Error(ErrorCode::InvalidArgument, where,
                original.file.empty() ? "is a folder, and the copy is a file"
                                      : "is a file, and the copy is a folder",
                "give two folders, or two files");
  }
  std::error_code unknown;
  if (!fs::equivalent(of_copy, of_original, unknown)) return;
  throw Error(ErrorCode::InvalidArgument, where, "is the same as the copy itself",
              "give the original that it was copied from");
}

}  // namespace

CopyReport compare_copies(const CopySide& copy, const CopySide& original,
                          const ExecuteOptions& options) {
  refuse_what_makes_no_sense(copy, original);
  CopyReport report = Comparison(copy, original, options).run();
  report.original = original.file.empty() ? original.folder : original.folder / original.file;
  return report;
}

}  // namespace ckpt
