// sluice explain: says what the number of an error means.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error_catalogue.h"
#include "common/base/status.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

nlohmann::ordered_json RowJson(const CatalogueRow& row) {
  return {{"code", row.code},
          {"meaning", row.meaning},
          {"cause", row.cause},
          {"action", row.action},
          {"retryable", row.retryable}};
}

ExitCode ListErrors(const std::string& output) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows = {{"CODE", "MEANING"}};
  for (const CatalogueRow& row : ErrorCatalogue()) {
    json.push_back(RowJson(row));
    rows.push_back({row.code, row.meaning});
  }
  if (IsData(output)) PrintData(json, output);
  else std::fputs(Table(rows).c_str(), stdout);
  return kDone;
}

ExitCode ExplainError(const std::string& code, const std::string& output) {
  const CatalogueRow* const row = FindError(code);
  if (row == nullptr) {
    const std::vector<std::string> similar = FindSimilarErrors(code);
    return Complain(ErrorWith(
        absl::StatusCode::kNotFound,
        {.hint = similar.empty() ? "`sluice explain` lists all numbers"
                                 : absl::StrCat("there are ", absl::StrJoin(similar, ", "),
                                                "; `sluice explain` lists all numbers")},
        absl::StrCat("no error has the number ", code)));
  }
  if (IsData(output)) return PrintData(RowJson(*row), output), kDone;
  std::fputs(Table({{"code", row->code},
                    {"meaning", row->meaning},
                    {"cause", row->cause},
                    {"to do", row->action},
                    {"retry", row->retryable ? "the same may succeed later by itself"
                                             : "the same will fail again until something changes"}})
                 .c_str(),
             stdout);
  return kDone;
}

struct ExplainOptions {
  std::string code, output;
};

}  // namespace

std::vector<Command> ExplainCommands() {
  return {{"", "explain", "Say what the number of an error means, why it comes and what to do.",
           "  sluice explain SLUICE-CTL-0006\n  sluice explain queue-4\n"
           "  sluice explain -o json    # all numbers",
           [](CLI::App* app) {
             auto o = std::make_shared<ExplainOptions>();
             app->add_option("CODE", o->code,
                             "a number such as SLUICE-CTL-0006, or ctl-6; default: list all");
             AddFormats(app, &o->output);
             return [o] {
               return o->code.empty() ? ListErrors(o->output) : ExplainError(o->code, o->output);
             };
           }}};
}

}  // namespace sluice::cli
