#include "common/data/dataset.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/data/columnar.h"
#include "common/data/dataset_builder.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

absl::Status NoFormat(const Dataset::Options& options, const std::string& what,
                      const std::string& hint) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "UNSUPPORTED", .catalogue = "SLUICE-DATA-0003", .hint = hint},
                   absl::StrCat("data source ", options.name, ": ", options.path, " ", what));
}

// The columns of a file that hold the mapped fields. A column a.b is that of this name, or is in
// the column a.
std::vector<std::string> ColumnsOf(const Dataset::Options& options) {
  std::vector<std::string> columns;
  for (const auto& [name, column] : options.fields) {
    columns.push_back(column);
    if (const size_t dot = column.find('.'); dot != std::string::npos)
      columns.push_back(column.substr(0, dot));
  }
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  return columns;
}

// Reads files of columns, one after the other. Rows are counted over all of them.
absl::StatusOr<Dataset> ReadColumns(const Dataset::Options& options, ColumnarFormat format,
                                    const std::vector<std::string>& files) {
  DatasetBuilder builder(options);
  const std::string source = absl::StrCat("data source ", options.name);
  for (const std::string& file : files) {
    // A missing file is the error that it is for other formats.
    const absl::StatusOr<int> opened = OpenToRead(file);
    if (!opened.ok()) return Annotate(opened.status(), source);
    close(*opened);
    uint64_t number = 0;
    absl::Status added;
    const ColumnarQuery query{
        .path = file,
        .format = format,
        .columns = ColumnsOf(options),
        .names = [&](std::vector<std::string> names) { builder.SetColumns(std::move(names)); },
        .take =
            [&](const json& row) {
              ++number;
              added = builder.Add(row, absl::StrCat(file, ": row ", number), number);
              return added.ok() && !builder.full();
            }};
    SLUICE_RETURN_IF_ERROR(Annotate(ReadColumnar(query), absl::StrCat(source, ": ", file)));
    SLUICE_RETURN_IF_ERROR(added);
    if (builder.full()) break;
  }
  return std::move(builder).Finish();
}

// A folder to which `save_to_disk` of Hugging Face datasets has written: state.json names files of
// Arrow. One with several splits has dataset_dict.json, and such a folder for each split.
absl::StatusOr<Dataset> ReadFolder(const Dataset::Options& options) {
  const fs::path folder = options.path;
  std::error_code error;
  const auto read = [&](const char* name) -> json {
    const absl::StatusOr<std::string> text = ReadFile(folder / name);
    return text.ok() ? json::parse(*text, nullptr, /*allow_exceptions=*/false) : json();
  };
  if (fs::exists(folder / "dataset_dict.json", error)) {
    const json splits = read("dataset_dict.json");
    std::vector<std::string> names;
    if (splits.is_object() && splits.contains("splits") && splits["splits"].is_array()) {
      for (const json& split : splits["splits"])
        if (split.is_string()) names.push_back(split.get<std::string>());
    }
    return NoFormat(options, absl::StrCat("holds several splits: ", absl::StrJoin(names, ", ")),
                    names.empty() ? "name the folder of one split"
                                  : absl::StrCat("name the folder of one split, such as ",
                                                 (folder / names[0]).string()));
  }
  const json state = read("state.json");
  if (!state.is_object() || !state.contains("_data_files") || !state["_data_files"].is_array()) {
    return NoFormat(options, "is a folder that `save_to_disk` of datasets has not written",
                    "name a file (.jsonl, .parquet, .arrow), or such a folder");
  }
  // Rows that were selected or shuffled are an index beside the files, which is not read.
  if (state.contains("_indices_data_files") && !state["_indices_data_files"].is_null()) {
    return NoFormat(options, "has an index of its rows",
                    "call flatten_indices() before save_to_disk()");
  }
  std::vector<std::string> files;
  for (const json& file : state["_data_files"]) {
    // Neither a name nor a link may lead out of the folder, which may be all that a daemon is
    // allowed to read.
    const std::string name = file.is_object() ? file.value("filename", "") : "";
    if (name.empty() || name != fs::path(name).filename() || fs::is_symlink(folder / name, error)) {
      return NoFormat(options, absl::StrCat("names \"", name, "\", which is no file in it"),
                      "write the folder again");
    }
    files.push_back(folder / name);
  }
  return ReadColumns(options, ColumnarFormat::kArrow, files);
}

}  // namespace

absl::string_view Dataset::json(uint64_t row) const {
  const uint64_t begin = row == 0 ? 0 : ends_[row - 1];
  return absl::string_view(text_).substr(begin, ends_[row] - begin);
}

absl::StatusOr<Dataset> ReadDataset(const Dataset::Options& options) {
  if (!options.fields.contains("prompt")) {
    return Error(absl::StatusCode::kInvalidArgument, "NO_PROMPT",
                 absl::StrCat("data source ", options.name,
                              " maps no column to prompt; name the column of the prompts"));
  }
  std::error_code error;
  if (fs::is_directory(options.path, error)) return ReadFolder(options);
  if (absl::EndsWith(options.path, ".parquet"))
    return ReadColumns(options, ColumnarFormat::kParquet, {options.path});
  if (absl::EndsWith(options.path, ".arrow"))
    return ReadColumns(options, ColumnarFormat::kArrow, {options.path});
  if (absl::EndsWith(options.path, ".csv")) {
    return NoFormat(options, "is CSV, which this build does not read",
                    "convert it to JSON lines or Parquet");
  }
  return ReadJsonl(options);
}

}  // namespace sluice
