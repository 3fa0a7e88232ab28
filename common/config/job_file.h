#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::job::v1 {
class JobSpec;  // Forward-declared, so including this costs no generated header.
}

namespace sluice {

// Job files: YAML, mapped by reflection onto JobSpec. The rules at JobSpec's fields
// (proto/sluice/job/v1/job.proto) are the one source of keys, defaults, units, bounds and
// documentation; nothing here repeats them.
//
// Precedence: default < preset < file < --set. Each value keeps where it came from.

// One thing wrong with a job file, or unusual about it. Numbers are never re-used:
//   0001 unreadable, or not YAML             0008 not one of the legal words
//   0002 YAML that job files may not use     0009 required and missing
//   0003 unknown key                         0010 values that contradict each other
//   0004 duplicate key                       0011 memory or quota too small for the worst case
//   0005 wrong type                          0012 no such file or directory
//   0006 unit missing or unknown             0013 known, but not in this build
//   0007 out of bounds                       0014 --set that is no KEY=VALUE or names no value
//   0015 a model, tokenizer or template      0016 rows of a data file that the job cannot use
//        that cannot be used                 0017 a warning: it works, and is hardly meant
struct ConfigProblem {
  std::string file;  // As the caller named it; "--set" for those.
  int line = 0;      // From 1; 0: the whole file.
  int column = 0;    // From 1, in characters.
  int number = 0;    // The nnnn of SLUICE-CONFIG-nnnn.
  std::string text;  // What is wrong, with value and limit, and what to do.

  // job.yaml:27:28 SLUICE-CONFIG-0003 unknown key "learnig_rate" in trainer.optimizer. Did you mean
  // "lr"?
  std::string ToString() const;
};

inline constexpr int kMaxConfigProblems = 20;
inline constexpr int64_t kMaxJobFileBytes = 1 << 20;
inline constexpr int kMaxJobFileDepth = 32;

struct JobFileOptions {
  // "trainer.optimizer.lr=1e-3"; lists by number: "data.train.0.path=FILE".
  std::vector<std::string> sets;
  bool check_paths = true;  // Files and directories that the job reads must be there, and fit it.
};

// What loading gave. The spec is complete (every value set, paths absolute) where there are no
// problems.
struct JobFile {
  JobFile();
  ~JobFile();
  JobFile(JobFile&&) noexcept;
  JobFile& operator=(JobFile&&) noexcept;

  std::unique_ptr<job::v1::JobSpec> spec;
  // By path of the value: default, preset, file:LINE, set.
  std::map<std::string, std::string> origins;
  std::string hash;                     // SHA-256 of file, folder and sets: 32 bytes.
  std::vector<ConfigProblem> problems;  // In order of place; at most kMaxConfigProblems.
  std::vector<ConfigProblem>
      warnings;  // The same; looked for only where there are no problems. They stop nothing.
};

// Reads and checks a job file. Relative paths in the file resolve against its folder, those of
// --set against the working directory.
JobFile ReadJobFile(const std::string& path, const JobFileOptions& options = {});
// The same of a text that stands for the file `path`.
JobFile ParseJobFile(absl::string_view text, const std::string& path,
                     const JobFileOptions& options = {});

// The spec alone. INVALID_ARGUMENT: all problems, a line each.
absl::StatusOr<job::v1::JobSpec> LoadJobFile(const std::string& path,
                                             const std::vector<std::string>& sets = {});

// All problems, a line each; OK if there are none.
absl::Status ProblemStatus(const std::vector<ConfigProblem>& problems);

// The printed defaults: a job file with every key, its documentation, unit and bounds. It loads
// (but for its paths).
std::string JobFileDefaults();

// The spec as a job file that gives it again, without comments.
std::string JobFileText(const job::v1::JobSpec& spec);

// The word of `words` nearest to `word` by edit distance, else one that abbreviates it
// (learning_rate: lr); empty: none is.
std::string NearestWord(absl::string_view word, const std::vector<std::string>& words);

}  // namespace sluice
