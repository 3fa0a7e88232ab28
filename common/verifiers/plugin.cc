#include "common/verifiers/plugin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/plugin_spec.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

constexpr size_t kMaxReason = 1000;  // Bytes of the parts and the info in a verdict's reason.

// The item of an answer, as plugin/v1/plugin.proto describes it.
nlohmann::json ItemOf(const Answer& answer, const nlohmann::json& row) {
  nlohmann::json item = {{"completion", Utf8Lossy(answer.text)},
                         {"truncated", answer.truncated},
                         {"data_source", answer.data_source},
                         {"extra_info", row}};
  // The row's fields without those that the item has itself.
  nlohmann::json& others = item["extra_info"];
  if (const auto prompt = others.find("prompt"); prompt != others.end()) {
    item["prompt"] = std::move(*prompt);
    others.erase("prompt");
  }
  if (const auto gold = others.find("answer"); gold != others.end()) {
    item["ground_truth"] = std::move(*gold);
    others.erase("answer");
  }
  return item;
}

absl::StatusOr<Verdict> VerdictOf(const PluginResult& result) {
  if (!result.error.empty() && result.retryable)
    return Error(absl::StatusCode::kUnavailable, "PLUGIN_FAULT", result.error);
  if (!result.error.empty()) {
    return Verdict{
        .reason = result.error, .kind = Verdict::Kind::kUnscorable, .status = result.reason};
  }
  if (!result.score) return Verdict{.reason = "no score", .kind = Verdict::Kind::kAbsent};
  Verdict verdict{.score = *result.score, .reason = "scored"};
  if (!result.parts.empty()) {
    absl::StrAppend(&verdict.reason, " ",
                    Utf8Prefix(nlohmann::json(result.parts).dump(), kMaxReason));
  }
  if (!result.info.empty())
    absl::StrAppend(&verdict.reason, " ", Utf8Prefix(result.info, kMaxReason));
  return verdict;
}

class Plugin : public Verifier {
 public:
  Plugin(PluginSpec spec, std::string key, const VerifierContext& context)
      : spec_(std::move(spec)),
        key_(std::move(key)),
        run_(context.run_plugin),
        timeout_(context.timeout) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    return ScoreGroup({&answer, 1}, row)[0];
  }

  std::vector<absl::StatusOr<Verdict>> ScoreGroup(absl::Span<const Answer> answers,
                                                  const nlohmann::json& row) const override {
    std::vector<nlohmann::json> items;
    for (const Answer& answer : answers) items.push_back(ItemOf(answer, row));
    const absl::StatusOr<std::vector<PluginResult>> results =
        run_ == nullptr ? absl::FailedPreconditionError(
                              "this program runs no reward plug-ins; sluice-reward "
                              "and `sluice reward score` do")
                        : run_(key_, items, timeout_);
    std::vector<absl::StatusOr<Verdict>> verdicts;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!results.ok()) verdicts.emplace_back(results.status());
      else verdicts.push_back(VerdictOf((*results)[i]));
    }
    return verdicts;
  }

  absl::Status CheckRow(const nlohmann::json&) const override { return absl::OkStatus(); }
  double low() const override { return spec_.low; }
  double high() const override { return spec_.high; }

 private:
  const PluginSpec spec_;
  const std::string key_;
  const RunPlugin run_;
  const absl::Duration timeout_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakePlugin(const nlohmann::json& args,
                                                     const VerifierContext& context) {
  SLUICE_ASSIGN_OR_RETURN(PluginSpec spec, ParsePluginSpec(args));
  return std::make_unique<Plugin>(std::move(spec), args.dump(), context);
}

}  // namespace sluice
