#include "common/scoring/job_scorer.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "common/base/status.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {

absl::StatusOr<nlohmann::json> VerifierArgs(const job::v1::RewardEntry& entry) {
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(entry.args(), &text).ok()) {
    return absl::InvalidArgumentError(
        "the args have no JSON form: a number is not finite, or a value is not set");
  }
  return nlohmann::json::parse(text);
}

absl::StatusOr<Scorer> MakeScorer(const job::v1::Reward& reward) {
  std::vector<RewardRule> rules;
  for (const job::v1::RewardEntry& entry : reward.rewards()) {
    RewardRule rule{.name = entry.name(),
                    .verifier = entry.verifier(),
                    .weight = entry.weight(),
                    .gate = entry.gate(),
                    .gate_fail = entry.gate_fail()};
    const auto& sources = entry.when().data_source();
    rule.data_sources.assign(sources.begin(), sources.end());
    SLUICE_ASSIGN_OR_RETURN(rule.args, VerifierArgs(entry));
    rules.push_back(std::move(rule));
  }
  const Combine combine = reward.combine() == "product" ? Combine::kProduct
                          : reward.combine() == "min"   ? Combine::kMin
                                                        : Combine::kSum;
  return Scorer::Make(std::move(rules), combine);
}

}  // namespace sluice
