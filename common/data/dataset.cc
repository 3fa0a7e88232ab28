#include "common/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/data/columnar.h"
#include "common/data/dataset_builder.h"
#include "common/data/generator.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Limit of state.json and dataset_dict.json.
constexpr uint64_t kMaxFolderFile = 1 << 20;

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

// Reads files of columns, one after the other.
absl::StatusOr<Dataset> ReadColumns(const Dataset::Options& options, ColumnarFormat format,
                                    const std::vector<std::string>& files) {
  DatasetBuilder builder(options);
  const std::string source = absl::StrCat("data source ", options.name);
  for (const std::string& file : files) {
    const absl::StatusOr<int> fd = OpenToRead(file);
    if (!fd.ok()) return Annotate(fd.status(), source);
    const std::string before = absl::StrCat(file, ": row ");
    uint64_t number = 0;
    absl::Status added;
    const ColumnarQuery query{
        .fd = *fd,
        .format = format,
        .columns = ColumnsOf(options),
        .names = [&](std::vector<std::string> names) { builder.SetColumns(std::move(names)); },
        .take =
            [&](const json& row) {
              added = builder.Add(row, {before, ++number});
              return added.ok() && !builder.full();
            }};
    SLUICE_RETURN_IF_ERROR(Annotate(ReadColumnar(query), absl::StrCat(source, ": ", file)));
    SLUICE_RETURN_IF_ERROR(added);
    if (builder.full()) break;
  }
  return std::move(builder).Finish();
}

// A folder to which `save_to_disk` of Hugging Face datasets has written: state.json names files of
// Arrow. One with several splits has dataset_dict.json, and such a folder for each split. The files
// come from a submitter, so nothing in them is taken for granted.
absl::StatusOr<Dataset> ReadFolder(const Dataset::Options& options) {
  const fs::path folder = options.path;
  // Returns a member of the object in a file; null if there is no such file or member.
  const auto member = [&](const char* name, const char* key) -> absl::StatusOr<json> {
    const absl::StatusOr<std::string> text = ReadFile(folder / name, kMaxFolderFile);
    if (absl::IsNotFound(text.status())) return json();
    if (!text.ok()) return Annotate(text.status(), absl::StrCat("data source ", options.name));
    if (JsonDepth(*text) > Dataset::kMaxDepth) return json();
    const json whole = json::parse(*text, nullptr, /*allow_exceptions=*/false);
    return whole.is_object() && whole.contains(key) ? whole[key] : json();
  };
  SLUICE_ASSIGN_OR_RETURN(const json splits, member("dataset_dict.json", "splits"));
  if (splits.is_array()) {
    std::vector<std::string> names;
    for (const json& split : splits)
      if (split.is_string()) names.push_back(split.get<std::string>());
    return NoFormat(options, absl::StrCat("holds several splits: ", absl::StrJoin(names, ", ")),
                    names.empty() ? "name the folder of one split"
                                  : absl::StrCat("name the folder of one split, such as ",
                                                 (folder / names[0]).string()));
  }
  SLUICE_ASSIGN_OR_RETURN(const json data_files, member("state.json", "_data_files"));
  if (!data_files.is_array()) {
    return NoFormat(options, "is a folder that `save_to_disk` of datasets has not written",
                    "name a file (.jsonl, .parquet, .arrow), or such a folder");
  }
  // Rows that were selected or shuffled are an index beside the files, which is not read.
  SLUICE_ASSIGN_OR_RETURN(const json index, member("state.json", "_indices_data_files"));
  if (!index.is_null()) {
    return NoFormat(options, "has an index of its rows",
                    "call flatten_indices() before save_to_disk()");
  }
  std::vector<std::string> files;
  for (const json& file : data_files) {
    const bool named =
        file.is_object() && file.contains("filename") && file["filename"].is_string();
    const std::string name = named ? file["filename"].get<std::string>() : "";
    // Neither a name nor a link may lead out of the folder, which may be all that a daemon is
    // allowed to read.
    std::error_code error;
    if (name.empty() || name != fs::path(name).filename() || fs::is_symlink(folder / name, error)) {
      return NoFormat(options, absl::StrCat("names \"", name, "\", which is no file in it"),
                      "write the folder again");
    }
    files.push_back(folder / name);
  }
  return ReadColumns(options, ColumnarFormat::kArrow, files);
}

// Makes the rows of a generator. Its columns are fields of the same names, unless `options` maps
// others to these.
absl::StatusOr<Dataset> ReadGenerated(const Dataset::Options& options) {
  const absl::StatusOr<GeneratorSpec> spec = ParseGenerator(options.path);
  if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("data source ", options.name));

  Dataset::Options all = options;
  all.fields.try_emplace("level", "level");
  for (const GeneratorRow& row : Generators()) {
    if (row.name != spec->kind) continue;
    for (const std::string& column : row.columns) all.fields.try_emplace(column, column);
  }
  DatasetBuilder builder(all);
  const std::string before = absl::StrCat(options.path, ": row ");
  for (uint64_t i = 0; i < spec->rows && !builder.full(); ++i)
    SLUICE_RETURN_IF_ERROR(builder.Add(GenerateRow(*spec, i), {before, i + 1}));
  return std::move(builder).Finish();
}

}  // namespace

std::string RowPlace::ToString() const { return absl::StrCat(before, number); }

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
  if (IsGeneratorText(options.path)) return ReadGenerated(options);
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
