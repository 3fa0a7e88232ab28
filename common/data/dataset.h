#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// The rows of one file, each as JSON of its mapped fields with sorted keys:
// {"answer":"..","prompt":".."}.
//
// Immutable once read, so safe from any thread.
class Dataset {
 public:
  static constexpr uint64_t kMaxRowBytes = 1 << 20;   // Of a row's mapped JSON.
  static constexpr uint64_t kMaxHeadBytes = 4 << 20;  // Of the file, for Options::first_rows.
  static constexpr size_t kMaxDepth = 64;  // Of lists and objects in a line, the row included.

  struct Options {
    std::string name;  // Of the source, for messages.
    std::string path;
    // Name in the row -> column of the file; a column inside an object is written a.b. `prompt`
    // must be among the names. A field mapped to the column of its own name may be absent, but then
    // from all rows (a prompt never may).
    std::map<std::string, std::string> fields;
    bool skip_bad_rows = false;  // Skipped and counted; else the first one is the error.
    // A row whose prompt is neither a text nor a list of messages, or is empty, is bad. Else that
    // shows when it is rendered.
    bool check_prompts = false;
    // Only so many rows from the start of the file, and of that no more than kMaxHeadBytes: for a
    // look at it. 0: all. RESOURCE_EXHAUSTED where not even one row ends within them.
    uint64_t first_rows = 0;
    const char* bad_row_hint = "mend the line, or set data.order.on_bad_row: skip";
    // Says of a mapped row why no answer to it could be scored. Such rows are set aside and
    // counted. May be empty: answers to all rows can be scored.
    std::function<absl::Status(const nlohmann::json& row)> check_scorable;
  };

  uint64_t rows() const { return ends_.size(); }
  absl::string_view json(uint64_t row) const;
  // The line of the file that the row stands in, from 1. Only of a look at the first rows.
  uint64_t line(uint64_t row) const { return lines_[row]; }
  // Rows that could not be read, and what was wrong with the first of them.
  uint64_t skipped() const { return skipped_; }
  const std::string& first_skipped() const { return first_skipped_; }
  // Rows that no answer could be scored for, and what is wrong with the first of them.
  uint64_t set_aside() const { return set_aside_; }
  const std::string& first_set_aside() const { return first_set_aside_; }

 private:
  friend absl::StatusOr<Dataset> ReadJsonl(const Options& options);
  std::string text_;            // All rows, one after the other.
  std::vector<uint64_t> ends_;  // Where each ends in it.
  // As long as ends_ where only the first rows were asked for, else empty.
  std::vector<uint64_t> lines_;
  uint64_t skipped_ = 0, set_aside_ = 0;
  std::string first_skipped_, first_set_aside_;
};

// Reads JSON lines: one object a line, blank lines skipped (the layout of GSM8K and most prompt
// files). INVALID_ARGUMENT (BAD_ROW, SLUICE-DATA-0001) names file, line and column, what was found
// and wanted. Also INVALID_ARGUMENT: no rows (NO_ROWS), none that can be scored (UNSCORABLE, with
// the first of them), or no mapping for `prompt`. NOT_FOUND, PERMISSION_DENIED: of the file.
absl::StatusOr<Dataset> ReadJsonl(const Dataset::Options& options);

// Reads `options.path` by its suffix. INVALID_ARGUMENT: a format that this build does not read
// (says which it does).
absl::StatusOr<Dataset> ReadDataset(const Dataset::Options& options);

}  // namespace sluice
