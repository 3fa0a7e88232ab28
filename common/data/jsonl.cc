#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/data/dataset_builder.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

// Parses one line. Returns an empty string, or what is wrong, beginning with "COLUMN: " (the byte
// in the line, 1 if the parser does not know it).
std::string ParseLine(absl::string_view line, json* row) {
  if (line.size() > Dataset::kMaxLineBytes)
    return absl::StrCat("1: the line has more than ", Dataset::kMaxLineBytes, " bytes");
  // Check the depth before anything is built from the line, because copying and printing a JSON
  // value recurse.
  if (const size_t depth = JsonDepth(line); depth > Dataset::kMaxDepth) {
    return absl::StrCat("1: lists and objects are nested ", depth, " deep; the limit is ",
                        Dataset::kMaxDepth);
  }
  try {
    *row = json::parse(line.begin(), line.end());
  } catch (const json::parse_error& error) {
    const std::string what = error.what();  // "[json.exception..] parse error at ..: why"
    const size_t why = what.find("syntax error");
    return absl::StrCat(error.byte,
                        ": broken JSON: ", why == std::string::npos ? what : what.substr(why));
  }
  if (!row->is_object())
    return absl::StrCat("1: wanted one JSON object a line, found ", row->type_name());
  return "";
}

// Passes the lines of a file on, without their line ends, one at a time, so that the file may be
// larger than memory. Of a line above `limit` bytes it passes the first limit + 1, as soon as they
// are read. An error of `take` ends the reading and is returned.
absl::Status ReadLines(const std::string& path, uint64_t limit,
                       const std::function<absl::Status(absl::string_view line)>& take) {
  std::string line;      // What was read of the line so far.
  bool skipped = false;  // The rest of the line is too much.
  const auto take_piece = [&](absl::string_view piece) -> absl::Status {
    while (true) {
      const size_t end = piece.find('\n');
      if (!skipped) {
        const uint64_t room = limit + 1 - line.size();
        absl::StrAppend(&line, piece.substr(0, std::min<uint64_t>(end, room)));
        skipped = line.size() > limit;
        if (skipped || end != absl::string_view::npos) SLUICE_RETURN_IF_ERROR(take(line));
      }
      if (end == absl::string_view::npos) return absl::OkStatus();
      skipped = false;
      line.clear();
      piece.remove_prefix(end + 1);
    }
  };
  SLUICE_RETURN_IF_ERROR(ReadFileInPieces(path, take_piece));
  return line.empty() || skipped ? absl::OkStatus() : take(line);
}

}  // namespace

absl::StatusOr<Dataset> ReadJsonl(const Dataset::Options& options) {
  DatasetBuilder builder(options);
  const std::string before = absl::StrCat(options.path, ":");
  uint64_t number = 0, bytes = 0;
  json row;
  absl::Status bad;  // The error that a row is to the builder.
  const auto take = [&](absl::string_view line) -> absl::Status {
    bytes += line.size() + 1;
    if (builder.full()) return absl::CancelledError();
    if (options.first_rows > 0 && bytes > Dataset::kMaxHeadBytes) {
      if (number > 0) return absl::CancelledError();
      return absl::ResourceExhaustedError(absl::StrCat(
          options.path, ": the first row is longer than ", Dataset::kMaxHeadBytes, " bytes"));
    }

    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) return absl::OkStatus();
    const std::string wrong = ParseLine(line, &row);
    bad = wrong.empty() ? builder.Add(row, {before, number})
                        : builder.AddBad(absl::StrCat(before, number, ":", wrong));
    return bad;
  };
  const bool looks = options.first_rows > 0;
  const absl::Status read =
      ReadLines(options.path, looks ? Dataset::kMaxHeadBytes : Dataset::kMaxLineBytes, take);
  SLUICE_RETURN_IF_ERROR(bad);
  if (!read.ok() && !absl::IsCancelled(read))
    return Annotate(read, absl::StrCat("data source ", options.name));
  return std::move(builder).Finish();
}

}  // namespace sluice
