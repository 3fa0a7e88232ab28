#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/data/dataset.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {
class PromptRenderer;
}

namespace sluice::cli {

// A file of rows to check.
struct DataToCheck {
  std::string name;
  bool held_out = false;  // Evaluated on, so that no training row may overlap with it.
  // What ReadDataset() is to read, without its visit_ functions.
  Dataset::Options data;
  std::string format;  // Of the prompt, as in the job file; says which fields make it.
  // The name of the source among those of the renderer.
  std::string rendered_as;
};

struct DataCheckOptions {
  std::vector<DataToCheck> sources;
  // Says why no answer to a mapped row could be scored or trained on, or OK. May be empty.
  std::function<absl::Status(const nlohmann::json& row, const std::string& source)> check_answer;
  const PromptRenderer* renderer = nullptr;  // Null: tokens are not counted.
  uint64_t max_prompt = 0;                   // Most tokens of a prompt.
  bool skip_bad_rows = false;                // The job skips bad rows, so they are no failure.
  uint32_t show = 10;                        // How many rows of each kind are named.
};

// Rows with something wrong: how many there are, and a sentence for each of the first, beginning
// with its place.
struct RowFindings {
  uint64_t count = 0;
  std::vector<std::string> first;
};

// How often each number of tokens occurs.
class LengthCounts {
 public:
  void Add(uint64_t tokens) { ++counts_[tokens], ++total_; }
  uint64_t total() const { return total_; }
  // The smallest length that at least this share of the prompts does not exceed. 0 if there are no
  // prompts.
  uint64_t Quantile(double share) const;
  uint64_t CountAbove(uint64_t tokens) const;

  struct Range {
    uint64_t from = 0, to = 0;  // Both belong to it.
    uint64_t prompts = 0;
  };
  // Ranges up to the next power of two, from that of the shortest prompt to that of the longest.
  std::vector<Range> Histogram() const;

 private:
  std::map<uint64_t, uint64_t> counts_;
  uint64_t total_ = 0;
};

struct SourceReport {
  std::string name, path;
  bool held_out = false;
  uint64_t rows = 0;       // Good ones.
  RowFindings bad;         // Cannot be read, or make no prompt.
  RowFindings unscorable;  // No answer to them could be scored, or there is none to train on.
  // Prompts that an earlier row of the training data, or of the held-out data, has too.
  RowFindings duplicates;
  uint64_t conflicts = 0;  // Those of them with another answer.
  std::optional<LengthCounts> tokens;
};

struct DataReport {
  std::vector<SourceReport> sources;
  bool answers_checked = false;
  // Held-out rows that a training row overlaps with, if there are rows of both kinds.
  std::optional<RowFindings> overlap;
  uint64_t max_prompt = 0;
  bool skip_bad_rows = false;

  // Whether a source has no good row, or there is a bad row that is not skipped, a row that cannot
  // be scored, or an overlap.
  bool HasFailure() const;
};

// Reads the files once, row by row. Keeps about 40 bytes a row, and what Overlap keeps.
// Errors as ReadDataset(), but bad rows are findings.
absl::StatusOr<DataReport> CheckDataFiles(const DataCheckOptions& options);

nlohmann::ordered_json DataReportJson(const DataReport& report);
// For people. With `utf8` the bars are block characters.
std::string DataReportText(const DataReport& report, bool utf8);

}  // namespace sluice::cli
