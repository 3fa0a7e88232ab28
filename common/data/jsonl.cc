#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/json_depth.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/data/dataset.h"

namespace sluice {
namespace {
using nlohmann::json;

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
std::string ColumnNames(const json& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) {
    names.push_back(name);
    if (names.size() == 10) break;
  }
  return absl::StrJoin(names, ", ");
}

// Whether a value can be a prompt: a text or a list of messages, not empty.
bool IsPrompt(const json& value) {
  if (value.is_string()) return value != "";
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(),
                     [](const json& message) { return message.is_object(); });
}

// Maps the lines of a file to rows.
class RowMapper {
 public:
  explicit RowMapper(const Dataset::Options& options)
      : fields_(options.fields), check_prompts_(options.check_prompts) {}

  // Maps one line. Returns an empty string and sets `out` to the row and `text` to its JSON; or
  // returns what is wrong, beginning with "COLUMN: " (the byte in the line, 1 if the parser does
  // not know it).
  std::string MapLine(absl::string_view line, json* out, std::string* text) {
    // Check the depth before anything is built from the line, because copying and printing a JSON
    // value recurse.
    if (const size_t depth = JsonDepth(line); depth > Dataset::kMaxDepth) {
      return absl::StrCat("1: lists and objects are nested ", depth, " deep; the limit is ",
                          Dataset::kMaxDepth);
    }
    json row;
    try {
      row = json::parse(line.begin(), line.end());
    } catch (const json::parse_error& error) {
      const std::string what = error.what();  // "[json.exception..] parse error at ..: why"
      const size_t why = what.find("syntax error");
      return absl::StrCat(error.byte,
                          ": broken JSON: ", why == std::string::npos ? what : what.substr(why));
    }

    if (!row.is_object())
      return absl::StrCat("1: wanted one JSON object a line, found ", row.type_name());

    json mapped = json::object();
    for (const auto& [name, column] : fields_) {
      const json* value = FindColumn(row, column);
      if (value == nullptr) {
        const bool optional = name == column && name != "prompt" && !seen_.contains(name);
        if (optional) continue;
        return absl::StrCat("1: no column \"", column, "\" for field ", name, "; the row has ",
                            ColumnNames(row));
      }
      // All rows must have the same fields.
      if (has_good_row_ && !seen_.contains(name))
        return absl::StrCat("1: column \"", column, "\" is here, but not in the rows before");
      if (name == "prompt" && check_prompts_ && !IsPrompt(*value)) {
        return absl::StrCat("1: the prompt, column \"", column, "\", is ", JsonExcerpt(*value),
                            "; wanted: a text or a list of messages, not empty");
      }
      mapped[name] = *value;
    }

    *text = mapped.dump();
    if (text->size() > Dataset::kMaxRowBytes) {
      return absl::StrCat("1: the row's fields take ", text->size(), " bytes; the limit is ",
                          Dataset::kMaxRowBytes);
    }

    for (const auto& [name, value] : mapped.items()) seen_.insert(name);
    has_good_row_ = true;
    *out = std::move(mapped);
    return "";
  }

 private:
  const std::map<std::string, std::string>& fields_;
  const bool check_prompts_;
  std::set<std::string> seen_;  // Names of the fields that the first good row had.
  bool has_good_row_ = false;
};

// Reads the file. Of a large file it reads the first kMaxHeadBytes, up to the last whole line.
absl::StatusOr<std::string> ReadHead(const std::string& path) {
  std::string text;
  const absl::Status read = ReadFileInPieces(path, [&](absl::string_view piece) {
    absl::StrAppend(&text, piece);
    return text.size() < Dataset::kMaxHeadBytes ? absl::OkStatus()
                                                : absl::OutOfRangeError("enough");
  });
  if (read.ok()) return text;
  if (!absl::IsOutOfRange(read)) return read;

  text.resize(Dataset::kMaxHeadBytes);
  const size_t last_line = text.rfind('\n');
  if (last_line == std::string::npos) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": the first row is longer than ", Dataset::kMaxHeadBytes, " bytes"));
  }
  text.resize(last_line);
  return text;
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

absl::string_view Dataset::json(uint64_t row) const {
  const uint64_t begin = row == 0 ? 0 : ends_[row - 1];
  return absl::string_view(text_).substr(begin, ends_[row] - begin);
}

absl::StatusOr<Dataset> ReadJsonl(const Dataset::Options& options) {
  if (!options.fields.contains("prompt")) {
    return Error(absl::StatusCode::kInvalidArgument, "NO_PROMPT",
                 absl::StrCat("data source ", options.name,
                              " maps no column to prompt; name the column of the prompts"));
  }
  absl::StatusOr<std::string> text =
      options.first_rows > 0 ? ReadHead(options.path) : ReadFile(options.path);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("data source ", options.name));

  Dataset dataset;
  RowMapper mapper(options);
  uint64_t line_number = 0;
  json row;
  std::string row_text;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    if (options.first_rows > 0 && dataset.rows() + dataset.skipped_ >= options.first_rows) break;

    const std::string wrong = mapper.MapLine(line, &row, &row_text);
    if (wrong.empty()) {
      const absl::Status scorable =
          options.check_scorable ? options.check_scorable(row) : absl::OkStatus();
      if (!scorable.ok()) {
        if (dataset.set_aside_++ == 0)
          dataset.first_set_aside_ =
              absl::StrCat(options.path, ":", line_number, ": ", scorable.message());
        continue;
      }
      dataset.text_ += row_text;
      dataset.ends_.push_back(dataset.text_.size());
      if (options.first_rows > 0) dataset.lines_.push_back(line_number);
      continue;
    }

    const std::string where = absl::StrCat(options.path, ":", line_number, ":", wrong);
    if (!options.skip_bad_rows) {
      return ErrorWith(
          absl::StatusCode::kInvalidArgument,
          {.reason = "BAD_ROW", .catalogue = "SLUICE-DATA-0001", .hint = options.bad_row_hint},
          where);
    }
    if (dataset.skipped_++ == 0) dataset.first_skipped_ = where;
  }
  if (dataset.rows() == 0) return NoRows(options, dataset);
  return dataset;
}

absl::StatusOr<Dataset> ReadDataset(const Dataset::Options& options) {
  for (const char* suffix : {".parquet", ".csv", ".arrow"}) {
    if (!absl::EndsWith(options.path, suffix)) continue;
    return ErrorWith(absl::StatusCode::kInvalidArgument,
                     {.reason = "UNSUPPORTED",
                      .catalogue = "SLUICE-DATA-0003",
                      .hint = "convert it to JSON lines"},
                     absl::StrCat("data source ", options.name, ": ", options.path,
                                  ": this build reads JSON lines, not ", suffix + 1));
  }
  return ReadJsonl(options);
}

}  // namespace sluice
