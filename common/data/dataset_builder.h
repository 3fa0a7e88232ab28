#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/data/dataset.h"

namespace sluice {

// Makes a data set from the rows of a file, whatever its format. Not thread-safe.
class DatasetBuilder {
 public:
  // `options` outlives the builder.
  explicit DatasetBuilder(const Dataset::Options& options) : options_(options) {}

  // Maps a row and adds it.
  // INVALID_ARGUMENT BAD_ROW: the row is bad, and options.skip_bad_rows is off.
  absl::Status Add(const nlohmann::json& row, const RowPlace& place);
  // Counts a row that could not be read at all; `wrong` says where it stands and why.
  absl::Status AddBad(const std::string& wrong);
  // The names of all columns of the file, for messages; else the rows' own are used.
  void SetColumns(std::vector<std::string> names) { columns_ = std::move(names); }
  // Whether there are as many rows as options.first_rows asks for.
  bool full() const;

  // INVALID_ARGUMENT NO_ROWS or UNSCORABLE: no row can be used.
  absl::StatusOr<Dataset> Finish() &&;

 private:
  // Returns an empty string and sets `mapped` and its JSON; or returns what is wrong.
  std::string Map(const nlohmann::json& row, nlohmann::json* mapped, std::string* text);

  const Dataset::Options& options_;
  Dataset dataset_;
  std::vector<std::string> columns_;
  std::set<std::string> seen_;  // Names of the fields that the first good row had.
  bool has_good_row_ = false;
};

}  // namespace sluice
