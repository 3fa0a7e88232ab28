#include "tools/sluice/doctor/doctor.h"

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest.h"
#include "tools/sluice/doctor/checks.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "OK";
    case Outcome::kWarn: return "WARN";
    case Outcome::kFail: return "FAIL";
    case Outcome::kSkip: return "SKIP";
  }
  return "";
}

std::string CheckName(const DoctorCheck& check) {
  return absl::StrCat(check.group, ".", check.name);
}

int CountOutcomes(absl::Span<const DoctorResult> results, Outcome outcome) {
  return static_cast<int>(
      std::count_if(results.begin(), results.end(),
                    [&](const DoctorResult& result) { return result.finding.outcome == outcome; }));
}

}  // namespace

Finding Pass(std::string found) { return {Outcome::kOk, std::move(found), ""}; }
Finding Warn(std::string found, std::string fix) {
  return {Outcome::kWarn, std::move(found), std::move(fix)};
}
Finding Fail(std::string found, std::string fix) {
  return {Outcome::kFail, std::move(found), std::move(fix)};
}
Finding Skip(std::string why) { return {Outcome::kSkip, std::move(why), ""}; }

const std::vector<DoctorCheck>& DoctorChecks() {
  static const std::vector<DoctorCheck> all = [] {
    std::vector<DoctorCheck> checks;
    for (const std::vector<DoctorCheck>& group :
         {HostChecks(), DiskChecks(), NetChecks(), BuildChecks(), PkiChecks(), SandboxChecks(),
          JobChecks(), FleetChecks()}) {
      checks.insert(checks.end(), group.begin(), group.end());
    }
    return checks;
  }();
  return all;
}

absl::StatusOr<std::vector<const DoctorCheck*>> SelectChecks(absl::Span<const std::string> names) {
  const auto selects = [](const std::string& name, const DoctorCheck& check) {
    return name == check.group || name == CheckName(check);
  };
  std::vector<std::string> known;
  for (const DoctorCheck& check : DoctorChecks()) {
    if (known.empty() || known.back() != check.group) known.emplace_back(check.group);
  }
  for (const std::string& name : names) {
    if (std::any_of(DoctorChecks().begin(), DoctorChecks().end(),
                    [&](const DoctorCheck& check) { return selects(name, check); }))
      continue;
    std::vector<std::string> words = known;
    for (const DoctorCheck& check : DoctorChecks()) words.push_back(CheckName(check));
    const std::vector<absl::string_view> candidates(words.begin(), words.end());
    const absl::string_view nearest = NearestMatch(name, candidates);
    return absl::InvalidArgumentError(
        absl::StrCat("there is no check ", name,
                     nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                     " The groups are ", absl::StrJoin(known, ", ")));
  }

  std::vector<const DoctorCheck*> selected;
  for (const DoctorCheck& check : DoctorChecks()) {
    if (names.empty() || std::any_of(names.begin(), names.end(),
                                     [&](const std::string& name) { return selects(name, check); }))
      selected.push_back(&check);
  }
  return selected;
}

std::vector<DoctorResult> RunChecks(absl::Span<const DoctorCheck* const> checks,
                                    const DoctorInputs& inputs) {
  std::vector<std::future<Finding>> running;
  for (const DoctorCheck* check : checks) {
    running.push_back(
        std::async(std::launch::async, [check, &inputs] { return check->run(inputs); }));
  }

  std::vector<DoctorResult> results;
  for (size_t i = 0; i < checks.size(); ++i) results.push_back({checks[i], running[i].get()});
  return results;
}

std::string DoctorText(absl::Span<const DoctorResult> results) {
  std::vector<std::vector<std::string>> rows;
  for (const DoctorResult& result : results) {
    rows.push_back(
        {OutcomeName(result.finding.outcome), CheckName(*result.check), result.finding.found});
    if (!result.finding.fix.empty()) rows.push_back({"", "", "fix: " + result.finding.fix});
  }
  return absl::StrCat(Table(rows), CountOutcomes(results, Outcome::kOk), " OK, ",
                      CountOutcomes(results, Outcome::kWarn), " WARN, ",
                      CountOutcomes(results, Outcome::kFail), " FAIL, ",
                      CountOutcomes(results, Outcome::kSkip), " not checked\n");
}

nlohmann::ordered_json DoctorJson(absl::Span<const DoctorResult> results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DoctorResult& result : results) {
    list.push_back({{"check", CheckName(*result.check)},
                    {"outcome", OutcomeName(result.finding.outcome)},
                    {"found", result.finding.found},
                    {"fix", result.finding.fix}});
  }
  return {{"checks", std::move(list)},
          {"ok", CountOutcomes(results, Outcome::kOk)},
          {"warn", CountOutcomes(results, Outcome::kWarn)},
          {"fail", CountOutcomes(results, Outcome::kFail)},
          {"skipped", CountOutcomes(results, Outcome::kSkip)}};
}

bool HasFailure(absl::Span<const DoctorResult> results) {
  return CountOutcomes(results, Outcome::kFail) > 0;
}

}  // namespace sluice::cli
