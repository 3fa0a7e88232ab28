#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {

// One thing wrong with the spec of a job, or unusual about it, named by the path of its value. A
// caller that has the job file adds line and column.
struct SpecProblem {
  // For example "data.train.0.path"; the path of the block if a value is missing.
  std::string path;
  int number = 0;    // The nnnn of SLUICE-CONFIG-nnnn; see job_file.h.
  std::string text;  // Names the value, the limit and what to do.

  // For example: SLUICE-CONFIG-0007 trainer.optimizer.lr is -1, but the minimum is 0
  std::string ToString() const;
};

namespace config {

inline constexpr int kWarningNumber = 17;

// Collects errors and warnings. Not thread-safe.
class SpecProblems {
 public:
  // Adds an error. The text begins with the path.
  template <typename... Parts>
  void Add(int number, absl::string_view path, const Parts&... parts) {
    errors_.push_back({std::string(path), number, absl::StrCat(path, parts...)});
  }
  // Adds an error about contradicting values (0010) unless `holds`.
  template <typename... Parts>
  void Require(bool holds, absl::string_view path, const Parts&... parts) {
    if (!holds) Add(10, path, " ", parts...);
  }
  // Adds a warning if `unusual`.
  template <typename... Parts>
  void WarnIf(bool unusual, absl::string_view path, const Parts&... parts) {
    if (unusual)
      warnings_.push_back({std::string(path), kWarningNumber, absl::StrCat(path, " ", parts...)});
  }

  const std::vector<SpecProblem>& errors() const { return errors_; }
  const std::vector<SpecProblem>& warnings() const { return warnings_; }

 private:
  std::vector<SpecProblem> errors_, warnings_;
};

}  // namespace config
}  // namespace sluice
