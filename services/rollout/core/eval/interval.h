#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

// Intervals for the means of an evaluation. The rows are taken as a sample of all rows that might
// have been asked: an interval says how far the mean may lie from that of all of them. Answers to
// one row depend on each other, so each row counts once, by its own mean.
namespace sluice {

struct Interval {
  double low = 0;
  double high = 0;
};

// The Wilson score interval of 95 % (E. B. Wilson, JASA 22 (1927), pages 209 to 212) for the mean
// of `shares`, one number in [0, 1] for each row. With one answer a row, where each share is 0 or
// 1, it is the interval of a proportion, and also right for few rows and for means near 0 and 1.
// Other shares vary less than that, so it is then wider than it need be. `shares` is not empty.
Interval WilsonInterval(absl::Span<const double> shares);

// The percentile bootstrap interval of 95 % (Efron and Tibshirani, An Introduction to the
// Bootstrap, 1993, section 13.3) for the mean of `values`, one number for each row: from 2000
// resamples, drawn by `seed`. The order of the values does not matter. Above 10,000 rows it is the
// mean +- 1.96 standard errors, to which the bootstrap comes then. With few rows it is too narrow
// (with 10, it holds the mean about 90 % of the time), and where all values are equal it has no
// width. Nothing: there are fewer than two values.
std::optional<Interval> BootstrapInterval(std::vector<double> values, uint64_t seed);

}  // namespace sluice
