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

// Job files: YAML that is copied into a JobSpec by reflection. The rules at JobSpec's fields
// (proto/sluice/job/v1/spec.proto) are the only source of keys, defaults, units, bounds and
// documentation.
//
// Precedence: default < preset < file < --set. The origin of each value is recorded.

// One thing wrong with a job file, or unusual about it. A number is never used for another meaning:
//   0001 unreadable, or not YAML             0010 values that contradict each other
//   0002 YAML that job files may not use     0011 memory or quota too small for the worst case
//   0003 unknown key                         0012 no such file or directory
//   0004 duplicate key                       0013 known, but not in this build
//   0005 wrong type                          0014 a --set that is not KEY=VALUE, or that names
//   0006 unit missing or unknown                  no value
//   0007 out of bounds                       0015 an unusable model, tokenizer or template
//   0008 not one of the allowed words        0016 rows of a data file that the job cannot use
//   0009 required and missing                0017 a warning: allowed, but probably a mistake
//                                            0018 more than the operator's policy allows
struct ConfigProblem {
  std::string file;  // As the caller named it; "--set KEY=VALUE" for a --set.
  int line = 0;      // Counted from 1; 0 means the whole file.
  int column = 0;    // Counted from 1, in characters.
  int number = 0;    // The nnnn of SLUICE-CONFIG-nnnn.
  std::string text;  // What is wrong, with value and limit, and what to do.

  // For example: job.yaml:27:28 SLUICE-CONFIG-0003 unknown key "learnig_rate" in trainer.optimizer.
  // Did you mean "lr"?
  std::string ToString() const;
};

inline constexpr int kMaxConfigProblems = 20;
inline constexpr int64_t kMaxJobFileBytes = 1 << 20;
inline constexpr int kMaxJobFileDepth = 32;

struct JobFileOptions {
  // "trainer.optimizer.lr=1e-3"; elements of lists by index: "data.train.0.path=FILE".
  std::vector<std::string> sets;
  // Check the files and directories that the job reads; missing ones are errors.
  bool check_paths = true;
};

// The result of loading a job file. If there are no problems, the spec is complete: every value is
// set, and paths are absolute.
struct JobFile {
  JobFile();
  ~JobFile();
  JobFile(JobFile&&) noexcept;
  JobFile& operator=(JobFile&&) noexcept;

  std::unique_ptr<job::v1::JobSpec> spec;
  // Path of a value -> "default", "preset", "file:LINE" or "set".
  std::map<std::string, std::string> origins;
  std::string hash;  // SHA-256 of the text, the file's folder and the --sets: 32 bytes.
  std::vector<ConfigProblem> problems;  // In order of place; at most kMaxConfigProblems.
  // In the same form; only filled in if there are no problems. Warnings do not stop a job.
  std::vector<ConfigProblem> warnings;
};

// Reads and checks a job file. Relative paths in the file are resolved against its folder, those in
// a --set against the working directory.
JobFile ReadJobFile(const std::string& path, const JobFileOptions& options = {});
// As ReadJobFile(), but `text` is the content of the file `path`.
JobFile ParseJobFile(absl::string_view text, const std::string& path,
                     const JobFileOptions& options = {});

// Returns only the spec. INVALID_ARGUMENT: the message has one line for each problem.
absl::StatusOr<job::v1::JobSpec> LoadJobFile(const std::string& path,
                                             const std::vector<std::string>& sets = {});

// INVALID_ARGUMENT (BAD_CONFIG) with one line for each problem; OK if there are none.
absl::Status ProblemStatus(const std::vector<ConfigProblem>& problems);

// Returns a job file with every key at its default, with documentation, unit and bounds. It is
// valid except for its paths, which are examples.
std::string JobFileDefaults();

// Explains one key of the job file, such as "algorithm.loss.kind": its meaning, default, bounds and
// what each of its words stands for, or the keys of a block. INVALID_ARGUMENT: there is no such
// key.
absl::StatusOr<std::string> ExplainKey(absl::string_view path);

// Returns a job file, without comments, that gives this spec when it is read.
std::string JobFileText(const job::v1::JobSpec& spec);

// Returns the element of `words` that is nearest to `word` by edit distance, else one that
// abbreviates it (learning_rate: lr), else "".
std::string NearestWord(absl::string_view word, const std::vector<std::string>& words);

}  // namespace sluice
