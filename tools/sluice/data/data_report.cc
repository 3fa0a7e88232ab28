// The report of `sluice data check` as JSON and as text.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sluice/data/data_check.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kShares[] = {0.5, 0.9, 0.99, 1};
constexpr const char* kShareNames[] = {"p50", "p90", "p99", "max"};
constexpr uint64_t kBarCells = 40;

Json FindingsJson(const RowFindings& findings) {
  return {{"count", findings.count}, {"first", findings.first}};
}

Json TokensJson(const LengthCounts& tokens, uint64_t max_prompt) {
  Json json = {{"prompts", tokens.total()}};
  for (size_t i = 0; i < std::size(kShares); ++i)
    json[kShareNames[i]] = tokens.Quantile(kShares[i]);
  json["max_prompt"] = max_prompt;
  json["too_long"] = tokens.CountAbove(max_prompt);
  json["histogram"] = Json::array();
  for (const LengthCounts::Range& range : tokens.Histogram())
    json["histogram"].push_back(
        {{"from", range.from}, {"to", range.to}, {"prompts", range.prompts}});
  return json;
}

void AppendFindings(const char* title, const RowFindings& findings, std::string* text) {
  if (findings.count == 0) return;
  absl::StrAppend(text, "\n", title, ": ", findings.count, "\n");
  for (const std::string& sentence : findings.first) absl::StrAppend(text, "  ", sentence, "\n");
  if (findings.count > findings.first.size()) {
    absl::StrAppend(text, "  .. and ", findings.count - findings.first.size(),
                    " more; --show names more of them\n");
  }
}

void AppendHistogram(const SourceReport& source, bool utf8, std::string* text) {
  const std::vector<LengthCounts::Range> ranges = source.tokens->Histogram();
  uint64_t most = 0;
  for (const LengthCounts::Range& range : ranges) most = std::max(most, range.prompts);
  if (most == 0) return;
  absl::StrAppend(text, "\ntokens of the prompts of ", source.name, "\n");
  for (const LengthCounts::Range& range : ranges) {
    absl::StrAppendFormat(text, "  %7d - %-7d %9d  ", range.from, range.to, range.prompts);
    const uint64_t cells = (range.prompts * kBarCells + most - 1) / most;
    for (uint64_t i = 0; i < cells; ++i) absl::StrAppend(text, utf8 ? "\u2588" : "#");
    absl::StrAppend(text, "\n");
  }
}

}  // namespace

Json DataReportJson(const DataReport& report) {
  Json json = {{"failed", report.HasFailure()}, {"sources", Json::array()}};
  for (const SourceReport& source : report.sources) {
    json["sources"].push_back(
        {{"name", source.name},
         {"path", source.path},
         {"role", source.held_out ? "eval" : "train"},
         {"rows", source.rows},
         {"bad", FindingsJson(source.bad)},
         {"unscorable", report.answers_checked ? FindingsJson(source.unscorable) : Json()},
         {"duplicates", FindingsJson(source.duplicates)},
         {"conflicts", source.conflicts},
         {"tokens", source.tokens ? TokensJson(*source.tokens, report.max_prompt) : Json()}});
  }
  json["overlap"] = report.overlap ? FindingsJson(*report.overlap) : Json();
  return json;
}

std::string DataReportText(const DataReport& report, bool utf8) {
  const bool counted = std::any_of(report.sources.begin(), report.sources.end(),
                                   [](const SourceReport& s) { return s.tokens.has_value(); });
  std::vector<std::vector<std::string>> rows = {
      {"SOURCE", "ROLE", "ROWS", "BAD", "UNSCORABLE", "DUPLICATES"}};
  if (counted) {
    for (const char* name : kShareNames) rows[0].push_back(absl::StrCat("TOKENS ", name));
    rows[0].push_back(absl::StrCat("OVER ", report.max_prompt));
  }
  for (const SourceReport& source : report.sources) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {source.name,
           source.held_out ? "eval" : "train",
           absl::StrCat(source.rows),
           absl::StrCat(source.bad.count),
           report.answers_checked ? absl::StrCat(source.unscorable.count) : "-",
           absl::StrCat(source.duplicates.count)};
    if (!source.tokens) continue;
    for (const double share : kShares) row.push_back(absl::StrCat(source.tokens->Quantile(share)));
    row.push_back(absl::StrCat(source.tokens->CountAbove(report.max_prompt)));
  }
  std::string text = Table(rows);

  for (const SourceReport& source : report.sources) {
    const auto title = [&](const char* what) { return absl::StrCat(what, " of ", source.name); };
    if (source.rows == 0) absl::StrAppend(&text, "\n", source.name, " has no row to use\n");
    AppendFindings(title("bad rows").c_str(), source.bad, &text);
    AppendFindings(title("rows that cannot be scored").c_str(), source.unscorable, &text);
    AppendFindings(title("duplicate prompts").c_str(), source.duplicates, &text);
  }
  if (report.overlap) {
    AppendFindings("eval rows that overlap with training rows", *report.overlap, &text);
    if (report.overlap->count == 0)
      absl::StrAppend(&text, "\nno eval row overlaps with a training row\n");
  }
  for (const SourceReport& source : report.sources) {
    if (source.tokens) AppendHistogram(source, utf8, &text);
  }
  return text;
}

}  // namespace sluice::cli
