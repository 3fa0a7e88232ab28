#include "tools/sluice/table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/curve.h"
#include "tools/sluice/progress.h"

namespace sluice::cli {
namespace {

// Formats the counts that are not zero, sorted by key; keys that are numbers are sorted as numbers.
template <typename ProtoMap>
std::string CountsByKeyText(const ProtoMap& counts) {
  std::vector<std::pair<std::string, int64_t>> sorted;
  for (const auto& [key, count] : counts) {
    if (count != 0) sorted.emplace_back(key, count);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    int64_t x, y;
    if (absl::SimpleAtoi(a.first, &x) && absl::SimpleAtoi(b.first, &y)) return x < y;
    return a.first < b.first;
  });
  return sorted.empty() ? "none"
                        : absl::StrJoin(sorted, "  ", [](std::string* out, const auto& entry) {
                            absl::StrAppend(out, entry.first, ": ", entry.second);
                          });
}

}  // namespace

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }

  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string ResultTable(const job::v1::JobResult& result, bool utf8) {
  const common::v1::Ledger& ledger = result.ledger();
  std::vector<std::vector<std::string>> rows = {{"job", result.job()},
                                                {"state", result.state()},
                                                {"steps", absl::StrCat(result.steps())},
                                                {"time", ShortDuration(result.seconds())}};
  for (std::vector<std::string>& row : CurveRows(result, utf8)) rows.push_back(std::move(row));
  rows.insert(
      rows.end(),
      {{"tokens", absl::StrCat("generated ", result.tokens_generated(), "  trained ",
                               result.tokens_trained())},
       {"staleness", absl::StrCat("max ", result.staleness_max(), "  tokens by staleness: ",
                                  CountsByKeyText(result.staleness_histogram()))},
       {"ledger", absl::StrCat("accepted ", ledger.accepted(), " = durable ", ledger.durable(),
                               " + applied ", ledger.applied(), " + live ", ledger.live(),
                               " + dropped (", CountsByKeyText(ledger.dropped()), ")")},
       {"restarts", CountsByKeyText(result.restarts())},
       {"checkpoint", result.checkpoint().empty() ? "none" : result.checkpoint()}});
  if (result.has_eval()) {
    const job::v1::EvalSummary& eval = result.eval();
    rows.push_back({"eval", absl::StrFormat("%.4f -> %.4f, %d versions", eval.first(), eval.last(),
                                            eval.versions())});
    const std::string best = absl::StrFormat("%.4f, version %d: %s", eval.best(),
                                             eval.best_version(), eval.best_checkpoint());
    rows.push_back({"best", eval.best_checkpoint().empty() ? "none" : best});
  }

  std::string text = Table(rows);
  for (const std::string& warning : result.warnings()) {
    absl::StrAppend(&text, "warning: ", warning, "\n");
  }
  return text;
}

}  // namespace sluice::cli
