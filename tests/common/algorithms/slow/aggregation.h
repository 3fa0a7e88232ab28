#pragma once

#include <set>
#include <string>

#include "tests/common/algorithms/slow/batch.h"

// Section 4 of the sheet: one number from the losses l of all tokens. `l` is 0 where a token is
// rejected; the denominators count it all the same.
namespace sluice::slow {

inline double SumOfSequence(const Flags& mask, const Matrix& l, size_t i) {
  double sum = 0;
  for (size_t t = 0; t < mask[i].size(); ++t) {
    if (mask[i][t]) sum += l[i][t];
  }
  return sum;
}

// N
inline double TokensOfStep(const Flags& mask) {
  double sum = 0;
  for (size_t i = 0; i < mask.size(); ++i) sum += TokensOf(mask, i);
  return sum;
}

// B_v
inline double SequencesOfStep(const Flags& mask) {
  double count = 0;
  for (size_t i = 0; i < mask.size(); ++i) count += TokensOf(mask, i) > 0;
  return count;
}

// N_g
inline double TokensOfGroup(const Batch& b, int64_t group) {
  double sum = 0;
  for (size_t i = 0; i < b.sequences(); ++i) sum += b.group[i] == group ? TokensOf(b.mask, i) : 0;
  return sum;
}

// n_prompts
inline double PromptsOfStep(const Batch& b) {
  double count = 0;
  for (const int64_t g : std::set<int64_t>(b.group.begin(), b.group.end()))
    count += TokensOfGroup(b, g) > 0;
  return count;
}

inline double TokenMean(const Batch& b, const Matrix& l) {
  double sum = 0;
  for (size_t i = 0; i < b.sequences(); ++i) sum += SumOfSequence(b.mask, l, i);
  return sum / TokensOfStep(b.mask);
}

inline double SeqMeanTokenMean(const Batch& b, const Matrix& l) {
  double sum = 0;
  for (size_t i = 0; i < b.sequences(); ++i) {
    if (TokensOf(b.mask, i) > 0) sum += SumOfSequence(b.mask, l, i) / TokensOf(b.mask, i);
  }
  return sum / SequencesOfStep(b.mask);
}

inline double SeqMeanTokenSum(const Batch& b, const Matrix& l) {
  double sum = 0;
  for (size_t i = 0; i < b.sequences(); ++i) sum += SumOfSequence(b.mask, l, i);
  return sum / SequencesOfStep(b.mask);
}

inline double FixedLength(const Batch& b, const Matrix& l, double limit) {
  return SeqMeanTokenSum(b, l) / limit;
}

inline double PromptMean(const Batch& b, const Matrix& l) {
  double sum = 0;
  for (const int64_t g : std::set<int64_t>(b.group.begin(), b.group.end())) {
    double of_group = 0;
    for (size_t i = 0; i < b.sequences(); ++i)
      of_group += b.group[i] == g ? SumOfSequence(b.mask, l, i) : 0;
    if (TokensOfGroup(b, g) > 0) sum += of_group / TokensOfGroup(b, g);
  }
  return sum / PromptsOfStep(b);
}

// By the job key `aggregation`. `limit` is L_max.
inline double Aggregate(const std::string& mode, const Batch& b, const Matrix& l, double limit) {
  if (mode == "token_mean") return TokenMean(b, l);
  if (mode == "seq_mean_token_mean") return SeqMeanTokenMean(b, l);
  if (mode == "seq_mean_token_sum") return SeqMeanTokenSum(b, l);
  if (mode == "fixed_length") return FixedLength(b, l, limit);
  return mode == "prompt_mean" ? PromptMean(b, l) : NAN;
}

}  // namespace sluice::slow
