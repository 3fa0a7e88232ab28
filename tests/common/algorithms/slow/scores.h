#pragma once

#include <cmath>
#include <vector>

// Section 1.3 of the sheet: log-probs and entropy from the logits z of one row.
namespace sluice::slow {

using Logits = std::vector<double>;

inline double LogSumExp(const Logits& z, double temperature) {
  double most = -INFINITY, sum = 0;
  for (const double v : z) most = std::max(most, v / temperature);
  for (const double v : z) sum += std::exp(v / temperature - most);
  return most + std::log(sum);
}

inline double LogProb(const Logits& z, double temperature, size_t token) {
  return z[token] / temperature - LogSumExp(z, temperature);
}

inline double Entropy(const Logits& z, double temperature) {
  double mean = 0;
  for (size_t v = 0; v < z.size(); ++v)
    mean += std::exp(LogProb(z, temperature, v)) * z[v] / temperature;
  return LogSumExp(z, temperature) - mean;
}

// The gradient of f(z) by each logit, as difference quotients.
template <typename F>
Logits LogitGradient(const F& f, Logits z) {
  const double h = 1e-6;
  Logits out;
  for (double& v : z) {
    const double here = v;
    v = here + h;
    const double above = f(z);
    v = here - h;
    out.push_back((above - f(z)) / (2 * h));
    v = here;
  }
  return out;
}

}  // namespace sluice::slow
