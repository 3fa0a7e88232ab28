#include "common/algorithms/aggregation.h"

namespace sluice {
namespace {

double UnitWeight(int64_t, int64_t) { return 1; }
double PerToken(int64_t tokens, int64_t) { return 1 / static_cast<double>(tokens); }
double PerGroupToken(int64_t, int64_t group_tokens) {
  return 1 / static_cast<double>(group_tokens);
}

double OverTokens(const StepCounts& counts, int64_t) {
  return 1 / static_cast<double>(counts.tokens);
}
double OverSequences(const StepCounts& counts, int64_t) {
  return 1 / static_cast<double>(counts.sequences);
}
double OverCap(const StepCounts& counts, int64_t max_response) {
  return 1 / (static_cast<double>(counts.sequences) * static_cast<double>(max_response));
}
double OverPrompts(const StepCounts& counts, int64_t) {
  return 1 / static_cast<double>(counts.prompts);
}

}  // namespace

const Aggregation kTokenMean = {UnitWeight, OverTokens};
const Aggregation kSeqMeanTokenMean = {PerToken, OverSequences};
const Aggregation kSeqMeanTokenSum = {UnitWeight, OverSequences};
const Aggregation kFixedLength = {UnitWeight, OverCap};
const Aggregation kPromptMean = {PerGroupToken, OverPrompts};
const Aggregation kPairMean = {UnitWeight, OverPrompts};

}  // namespace sluice
