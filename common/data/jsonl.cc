#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

}  // namespace

absl::StatusOr<Dataset> ReadJsonl(const Dataset::Options& options) {
  absl::StatusOr<std::string> text =
      options.first_rows > 0 ? ReadHead(options.path) : ReadFile(options.path);
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("data source ", options.name));

  DatasetBuilder builder(options);
  uint64_t line_number = 0;
  json row;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    if (builder.full()) break;
    const std::string place = absl::StrCat(options.path, ":", line_number);
    const std::string wrong = ParseLine(line, &row);
    SLUICE_RETURN_IF_ERROR(wrong.empty() ? builder.Add(row, place, line_number)
                                         : builder.AddBad(absl::StrCat(place, ":", wrong)));
  }
  return std::move(builder).Finish();
}

}  // namespace sluice
