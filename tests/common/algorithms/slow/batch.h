#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

// This folder is a second implementation of the algorithm sheet, which the product is compared
// with. It is slow and obvious: fp64, padded tensors with masks, one function per formula, as the
// sheet writes them. It includes nothing that it checks, so that no mistake is shared. Section
// numbers are the sheet's. Where the sheet leaves a choice, the comment at the formula says which.
//
// Legend: B sequences of S positions; i is a sequence, t a position. sg(x) is x as a constant.
namespace sluice::slow {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Matrix = std::vector<std::vector<double>>;  // [B][S]
using Flags = std::vector<std::vector<uint8_t>>;  // [B][S]

// The tensors of a step (section 1.2). Values where `mask` is 0 mean nothing, and may be NaN.
struct Batch {
  Flags mask;                      // 1 if the policy sampled the token and is trained on it
  Matrix theta, prox, behav, ref;  // Log-probs of the current and the other policies.
  Matrix advantage, entropy;       // Entropy is in nats.
  std::vector<std::vector<int>> staleness;  // v_train - v of the token, in versions
  std::vector<int64_t> group;               // [B]

  size_t sequences() const { return mask.size(); }
  size_t positions(size_t i) const { return mask[i].size(); }
};

// Calls visit(i, t) for each token with mask 1, in order.
template <typename Visitor>
void ForEachToken(const Flags& mask, const Visitor& visit) {
  for (size_t i = 0; i < mask.size(); ++i) {
    for (size_t t = 0; t < mask[i].size(); ++t) {
      if (mask[i][t]) visit(i, t);
    }
  }
}

// Zeros in the shape of the mask.
template <typename T = double>
std::vector<std::vector<T>> Like(const Flags& mask, T value = 0) {
  std::vector<std::vector<T>> out;
  for (const auto& row : mask) out.emplace_back(row.size(), value);
  return out;
}

// T_i
inline double TokensOf(const Flags& mask, size_t i) {
  double count = 0;
  for (const uint8_t m : mask[i]) count += m;
  return count;
}

// The values of the tokens with mask 1, in order.
inline std::vector<double> Select(const Flags& mask, const Matrix& values) {
  std::vector<double> out;
  ForEachToken(mask, [&](size_t i, size_t t) { out.push_back(values[i][t]); });
  return out;
}

inline double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

// The standard deviation that divides by n - ddof.
inline double Std(const std::vector<double>& values, int ddof) {
  double squares = 0;
  for (const double v : values) squares += (v - Mean(values)) * (v - Mean(values));
  return std::sqrt(squares / (static_cast<double>(values.size()) - ddof));
}

// The clamp of section 1.4, before exp.
inline double Clamp20(double log_ratio) { return std::min(20.0, std::max(-20.0, log_ratio)); }

// a - b, token by token.
inline Matrix Difference(const Flags& mask, const Matrix& a, const Matrix& b) {
  Matrix out = Like(mask);
  ForEachToken(mask, [&](size_t i, size_t t) { out[i][t] = a[i][t] - b[i][t]; });
  return out;
}

}  // namespace sluice::slow
