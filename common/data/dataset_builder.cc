#include "common/data/dataset_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/json_depth.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

// Most bytes of all rows, which ReadFile() allows a file too.
constexpr uint64_t kMostBytes = uint64_t{1} << 32;

// The value of `column` in `row`. A column a.b that does not exist under this name is member b of
// object a. Null if there is none.
const json* FindColumn(const json& row, const std::string& column) {
  if (const auto it = row.find(column); it != row.end()) return &*it;
  const json* at = &row;
  for (const absl::string_view part : absl::StrSplit(column, '.')) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(std::string(part));
    if (it == at->end()) return nullptr;
    at = &*it;
  }
  return at;
}

// The names of the first ten columns, for a message.
std::string ColumnNames(const json& row, std::vector<std::string> names) {
  if (names.empty())
    for (const auto& [name, value] : row.items()) names.push_back(name);
  names.resize(std::min<size_t>(names.size(), 10));
  return absl::StrJoin(names, ", ");
}

// Whether a value can be a prompt: a text or a list of messages, not empty.
bool IsPrompt(const json& value) {
  if (value.is_string()) return value != "";
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(),
                     [](const json& message) { return message.is_object(); });
}

// The error for a file without a usable row.
absl::Status NoRows(const Dataset::Options& options, const Dataset& data) {
  if (data.set_aside() > 0) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.reason = "UNSCORABLE",
         .catalogue = "SLUICE-DATA-0004",
         .hint = "name the column that holds the reference answer, or mend the rows"},
        absl::StrCat("data source ", options.name, ": no answer to any of its ", data.set_aside(),
                     " rows could be scored; the first: ", data.first_set_aside()));
  }
  const std::string skipped =
      data.skipped() == 0
          ? ""
          : absl::StrCat("; ", data.skipped(), " were skipped, the first: ", data.first_skipped());
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "NO_ROWS", .catalogue = "SLUICE-DATA-0002", .hint = "check the file"},
                   absl::StrCat(options.path, " has no rows", skipped));
}

}  // namespace

std::string DatasetBuilder::Map(const json& row, json* out, std::string* text) {
  json mapped = json::object();
  for (const auto& [name, column] : options_.fields) {
    const json* value = FindColumn(row, column);
    if (value == nullptr) {
      const bool optional = name == column && name != "prompt" && !seen_.contains(name);
      if (optional) continue;
      return absl::StrCat("no column \"", column, "\" for field ", name, "; the row has ",
                          ColumnNames(row, columns_));
    }
    // All rows must have the same fields.
    if (has_good_row_ && !seen_.contains(name))
      return absl::StrCat("column \"", column, "\" is here, but not in the rows before");
    if (name == "prompt" && options_.check_prompts && !IsPrompt(*value)) {
      return absl::StrCat("the prompt, column \"", column, "\", is ", JsonExcerpt(*value),
                          "; wanted: a text or a list of messages, not empty");
    }
    mapped[name] = *value;
  }

  *text = mapped.dump();
  if (text->size() > Dataset::kMaxRowBytes) {
    return absl::StrCat("the row's fields take ", text->size(), " bytes; the limit is ",
                        Dataset::kMaxRowBytes);
  }

  // Lines were checked before they were parsed. Files of columns have limits of their libraries,
  // which are higher.
  if (const size_t depth = JsonDepth(*text); depth > Dataset::kMaxDepth) {
    return absl::StrCat("lists and objects are nested ", depth, " deep; the limit is ",
                        Dataset::kMaxDepth);
  }

  for (const auto& [name, value] : mapped.items()) seen_.insert(name);
  has_good_row_ = true;
  *out = std::move(mapped);
  return "";
}

absl::Status DatasetBuilder::Add(const json& row, const RowPlace& place) {
  json mapped;
  std::string text;
  const std::string wrong = Map(row, &mapped, &text);
  if (!wrong.empty()) return AddBad(absl::StrCat(place.ToString(), ": ", wrong));
  if (options_.visit_row) {
    options_.visit_row(mapped, text, place);
    return absl::OkStatus();
  }
  const absl::Status scorable =
      options_.check_scorable ? options_.check_scorable(mapped) : absl::OkStatus();
  if (!scorable.ok()) {
    if (dataset_.set_aside_++ == 0)
      dataset_.first_set_aside_ = absl::StrCat(place.ToString(), ": ", scorable.message());
    return absl::OkStatus();
  }
  if (dataset_.text_.size() + text.size() > kMostBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(place.ToString(), ": the rows take more than ", kMostBytes, " bytes"));
  }
  dataset_.text_ += text;
  dataset_.ends_.push_back(dataset_.text_.size());
  if (options_.first_rows > 0) dataset_.lines_.push_back(place.number);
  return absl::OkStatus();
}

absl::Status DatasetBuilder::AddBad(const std::string& wrong) {
  if (options_.visit_bad_row) {
    options_.visit_bad_row(wrong);
    return absl::OkStatus();
  }
  if (!options_.skip_bad_rows) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.reason = "BAD_ROW", .catalogue = "SLUICE-DATA-0001", .hint = options_.bad_row_hint},
        wrong);
  }
  if (dataset_.skipped_++ == 0) dataset_.first_skipped_ = wrong;
  return absl::OkStatus();
}

bool DatasetBuilder::full() const {
  if (options_.first_rows == 0) return false;
  return dataset_.rows() + dataset_.skipped() >= options_.first_rows ||
         dataset_.text_.size() >= Dataset::kMaxHeadBytes;
}

absl::StatusOr<Dataset> DatasetBuilder::Finish() && {
  if (dataset_.rows() == 0 && !options_.visit_row) return NoRows(options_, dataset_);
  return std::move(dataset_);
}

}  // namespace sluice
