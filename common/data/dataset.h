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

// Where a row stands: the line of a file of JSON lines, or the number of a row in a file of columns
// or of a generator.
struct RowPlace {
  absl::string_view before;  // The text before the number: "FILE:", or "FILE: row ".
  uint64_t number = 0;       // Counts from 1.

  std::string ToString() const;
};

// The rows of one file. Each is the JSON text of its mapped fields, with sorted keys:
// {"answer":"..","prompt":".."}.
//
// Immutable once it is read, so thread-safe.
class Dataset {
 public:
  static constexpr uint64_t kMaxRowBytes = 1 << 20;    // Limit of the JSON of a row's fields.
  static constexpr uint64_t kMaxHeadBytes = 4 << 20;   // Limit of what first_rows reads.
  static constexpr uint64_t kMaxLineBytes = 64 << 20;  // Limit of a line, with all its columns.
  // Nesting of lists and objects in a line, with the row itself.
  static constexpr size_t kMaxDepth = 64;

  struct Options {
    std::string name;  // Name of the data source, for messages.
    std::string path;
    // Maps the name of a field in the row to the column of the file. A column inside an object is
    // written a.b. `prompt` must be one of the names. A field that is mapped to the column of its
    // own name may be absent, but then from all rows. The prompt may never be absent.
    std::map<std::string, std::string> fields;
    bool skip_bad_rows = false;  // Skip and count bad rows; else the first one is the error.
    // Also treat a row as bad if its prompt is empty, or is neither a text nor a list of messages.
    // If this is off, the error appears when the row is rendered.
    bool check_prompts = false;
    // Read only this many rows from the start of the file, and at most kMaxHeadBytes of the file,
    // for a quick look. 0: all rows.
    uint64_t first_rows = 0;
    const char* bad_row_hint = "mend the line, or set data.order.on_bad_row: skip";
    // Says why no answer to a mapped row could be scored, or OK. Rows with an error are set aside
    // and counted. May be empty: then all rows count as scorable.
    std::function<absl::Status(const nlohmann::json& row)> check_scorable;
    // Gets each mapped row and its JSON text instead of the data set, which stays empty, so that
    // memory does not grow with the file. May be empty. If it is set, a file without rows is no
    // error.
    std::function<void(const nlohmann::json& row, const std::string& json, const RowPlace& place)>
        visit_row;
    // Gets what is wrong with each bad row, beginning with its place; no bad row is an error then.
    // May be empty.
    std::function<void(const std::string& wrong)> visit_bad_row;
  };

  uint64_t rows() const { return ends_.size(); }
  // The JSON text of a row. It is valid as long as the data set.
  absl::string_view json(uint64_t row) const;
  // The line of the file that the row stands in, or its number in a file of columns, from 1. Only
  // with Options::first_rows.
  uint64_t line(uint64_t row) const { return lines_[row]; }
  // Bad rows that were skipped, and what was wrong with the first of them.
  uint64_t skipped() const { return skipped_; }
  const std::string& first_skipped() const { return first_skipped_; }
  // Rows that were set aside because no answer to them could be scored, and the reason for the
  // first of them.
  uint64_t set_aside() const { return set_aside_; }
  const std::string& first_set_aside() const { return first_set_aside_; }

 private:
  friend class DatasetBuilder;
  std::string text_;            // All rows, one after the other.
  std::vector<uint64_t> ends_;  // Where each row ends in text_.
  // The line of each row. Empty without Options::first_rows.
  std::vector<uint64_t> lines_;
  uint64_t skipped_ = 0, set_aside_ = 0;
  std::string first_skipped_, first_set_aside_;
};

// Reads JSON lines: one object per line, blank lines are skipped (the layout of GSM8K and most
// prompt files). Errors as ReadDataset().
absl::StatusOr<Dataset> ReadJsonl(const Dataset::Options& options);

// Reads `options.path`: a file of Parquet (.parquet) or Arrow (.arrow), a folder that save_to_disk
// of Hugging Face datasets has written, or else JSON lines. A path "generator:.." stands for the
// tasks of a generator (generator.h), which have all its columns as fields.
// INVALID_ARGUMENT BAD_ROW (SLUICE-DATA-0001): a row is bad; names file, line and column, what was
// found and what was wanted.
// INVALID_ARGUMENT NO_ROWS: the file has no rows.
// INVALID_ARGUMENT UNSCORABLE: no row can be scored; gives the reason for the first.
// INVALID_ARGUMENT NO_PROMPT: no column is mapped to `prompt`.
// RESOURCE_EXHAUSTED: with first_rows, not even one row ends within kMaxHeadBytes; or the file is
// too large.
// INVALID_ARGUMENT UNSUPPORTED: this is not a format that can be read.
// FAILED_PRECONDITION UNSUPPORTED: this build cannot read files of columns (columnar.h).
// NOT_FOUND, PERMISSION_DENIED and others: the file cannot be read.
absl::StatusOr<Dataset> ReadDataset(const Dataset::Options& options);

}  // namespace sluice
