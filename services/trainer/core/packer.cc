#include "services/trainer/core/packer.h"

#include <algorithm>
#include <numeric>

namespace sluice::trainer {

std::vector<std::vector<uint32_t>> Pack(absl::Span<const uint32_t> lengths, uint32_t max_tokens) {
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });

  std::vector<std::vector<uint32_t>> bins;
  std::vector<uint64_t> used;
  size_t open = 0;  // Bins before it have no room for anything this short; lengths only fall.
  for (uint32_t index : order) {
    const uint64_t length = lengths[index];
    if (length == 0) break;
    size_t bin = open;
    while (bin < bins.size() && used[bin] + length > max_tokens) ++bin;
    if (bin == bins.size()) {
      bins.emplace_back();
      used.push_back(0);
    }
    bins[bin].push_back(index);
    used[bin] += length;
    while (open < bins.size() && used[open] >= max_tokens) ++open;
  }
  for (std::vector<uint32_t>& bin : bins) std::sort(bin.begin(), bin.end());
  return bins;
}

std::vector<uint32_t> CutEvenly(uint32_t count, uint32_t parts) {
  std::vector<uint32_t> cuts(parts + 1);
  for (uint32_t p = 0; p <= parts; ++p) cuts[p] = static_cast<uint32_t>(static_cast<uint64_t>(count) * p / parts);
  return cuts;
}

}  // namespace sluice::trainer
