// Measures how fast the verifier math scores answers.
//
//   bench_math_verifier [--json] [--verdicts] [--runs N] ROWS.jsonl
//
// ROWS.jsonl has one object a line with the texts `gold` and `pred`, and may have `decimals`. Each
// run scores all rows, one after the other on one thread. The figures are the median over the runs
// of the rows in a second, and the time of one row: median, 99th percentile and longest, of the
// medians of each row over the runs. With --verdicts it prints the score of each row instead, one a
// line; peers.py compares them with those of Math-Verify.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"
#include "tests/bench/report.h"

namespace sluice {
namespace {

struct Row {
  Answer answer;
  nlohmann::json fields;
};

std::vector<Row> ReadRows(const std::string& path) {
  const auto text = ReadFile(path);
  SLUICE_CHECK_MSG(text.ok(), text.status().ToString());
  std::vector<Row> rows;
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const auto row = nlohmann::json::parse(line);
    nlohmann::json fields = {{"answer", row["gold"]}};
    if (row.contains("decimals")) fields["decimals"] = row["decimals"];
    rows.push_back({{.text = row["pred"]}, std::move(fields)});
  }
  SLUICE_CHECK(!rows.empty());
  return rows;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ScoreRow(const Verifier& verifier, const Row& row) {
  const auto verdict = verifier.Score(row.answer, row.fields);
  return verdict.ok() ? verdict->score : -1;
}

int Main(const std::string& path, bool json, bool verdicts, int runs) {
  const std::vector<Row> rows = ReadRows(path);
  const auto verifier = *MakeVerifier("math", nlohmann::json::object());
  if (verdicts) {
    for (const Row& row : rows) std::printf("%g\n", ScoreRow(*verifier, row));
    return 0;
  }

  std::vector<double> rates;
  std::vector<std::vector<double>> times(rows.size());  // By row and run, in microseconds.
  for (int run = 0; run < runs; ++run) {
    const double start = Seconds();
    for (size_t i = 0; i < rows.size(); ++i) {
      const double begin = Seconds();
      ScoreRow(*verifier, rows[i]);
      times[i].push_back(1e6 * (Seconds() - begin));
    }
    rates.push_back(static_cast<double>(rows.size()) / (Seconds() - start));
  }

  std::vector<double> medians;
  for (const std::vector<double>& row : times) medians.push_back(bench::Median(row));
  std::sort(medians.begin(), medians.end());
  const bench::Report report(json);
  report.Add({.name = "math_verifier/rate",
              .value = bench::Median(rates),
              .unit = "rows/s",
              .runs = runs});
  report.Add({.name = "math_verifier/p50",
              .value = medians[medians.size() / 2],
              .unit = "us",
              .runs = runs});
  report.Add({.name = "math_verifier/p99",
              .value = medians[medians.size() * 99 / 100],
              .unit = "us",
              .runs = runs});
  report.Add(
      {.name = "math_verifier/longest", .value = medians.back(), .unit = "us", .runs = runs});
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  CLI::App app("Measures how fast the verifier math scores answers.");
  std::string path;
  bool json = false, verdicts = false;
  int runs = 15;
  app.add_option("ROWS", path, "JSON lines with gold and pred")->required();
  app.add_flag("--verdicts", verdicts, "print the score of each row, and measure nothing");
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--runs", runs, "times that all rows are scored")->check(CLI::Range(1, 10'000));
  CLI11_PARSE(app, argc, argv);

  return sluice::Main(path, json, verdicts, runs);
}
