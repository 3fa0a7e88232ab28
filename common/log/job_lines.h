#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/log/log.h"

namespace sluice::log {

// The newest log lines of each job, in memory, for those who may not read the log itself. A job's
// lines are found by its id, which is never used again.
//
// A line names its job by the job's name, which a later job of somebody else may have. So a line
// belongs to the job that has begun under this name here and not ended, or else to the one that has
// ended last. While two of one name run here, their lines are kept for neither.
//
// Thread-safe.
class JobLines {
 public:
  struct Options {
    // Of each job. When one of them is reached, its oldest lines are dropped.
    size_t lines = 2000;
    size_t bytes = 1 << 20;
    // When there are more, the one that has been quiet for longest is forgotten.
    size_t jobs = 64;
  };

  struct Line {
    uint64_t number = 0;  // Counts the job's lines, from 1.
    absl::Time at;
    Level level = Level::kInfo;
    std::string json;
  };

  struct Query {
    // The caller has the lines up to this one of this run. Of another run it has none.
    uint64_t after = 0;
    uint64_t run = 0;
    Level lowest = Level::kDebug;
    absl::Time since = absl::InfinitePast();
    size_t tail = 0;  // At most so many, the newest. 0: all.
  };

  struct Answer {
    // A random number of this count of the job's lines. 0: the job has no lines here.
    uint64_t run = 0;
    uint64_t newest = 0;  // Number of the newest line, whether the query asks for it or not.
    // Number of dropped lines that the query may have asked for.
    uint64_t lost = 0;
    std::vector<Line> lines;  // Oldest first.
  };

  JobLines() : JobLines(Options()) {}
  explicit JobLines(const Options& options) : options_(options) {}

  // From now on, lines of this name belong to the job with this id. Each Begin() has its End().
  void Begin(absl::string_view id, absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  void End(absl::string_view id, absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps a line of the job with this name. The line's number is not used.
  void Add(absl::string_view name, Line line) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a job that the caller knows by its id.
  void AddTo(absl::string_view id, Line line) ABSL_LOCKS_EXCLUDED(mu_);

  Answer Read(absl::string_view id, const Query& query) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Job {
    uint64_t run = 0;
    uint64_t newest = 0;     // Number of the newest line; those kept are the last lines.size().
    uint64_t touched = 0;    // Value of touches_ when the job was last written to.
    size_t bytes = 0;        // Of all lines.
    std::deque<Line> lines;  // Oldest first.
  };
  struct Name {
    std::map<std::string, int, std::less<>> running;  // How often each id has begun and not ended.
    std::string last;                                 // The id that has begun or ended last.
  };

  Job& FindOrAdd(absl::string_view id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Append(Job& job, Line line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the job that has been quiet for longest, and the names that only it has.
  void ForgetOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  uint64_t touches_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Job, std::less<>> jobs_ ABSL_GUARDED_BY(mu_);  // By id.
  // By name, and by id too, as some lines name their job by its id.
  std::map<std::string, Name, std::less<>> names_ ABSL_GUARDED_BY(mu_);
};

// Those of this process, which Write() fills. Never destroyed.
JobLines& ProcessJobLines();

// While it lives, this process works for the job, so that its lines are kept. Whoever runs a job
// holds one, until all threads that write lines for it have ended.
class JobScope {
 public:
  JobScope(absl::string_view id, absl::string_view name);
  ~JobScope();
  JobScope(const JobScope&) = delete;
  JobScope& operator=(const JobScope&) = delete;

 private:
  const std::string id_;
  const std::string name_;
};

}  // namespace sluice::log
