#include "services/trainer/core/packer.h"

#include <algorithm>

#include "common/base/status.h"

namespace sluice::trainer {
namespace {

// Members of one group that are placed together. `tokens` counts their shared tokens once.
struct Part {
  std::vector<uint32_t> members;
  uint64_t tokens = 0;
};

std::vector<Part> MakeParts(absl::Span<const PackItem> items, uint32_t max_tokens) {
  std::vector<Part> parts;
  for (uint32_t i = 0; i < items.size(); ++i) {
    const PackItem& item = items[i];
    if (item.length == 0) continue;
    SLUICE_CHECK(item.shared <= item.length);
    const uint64_t own = item.length - item.shared;
    const bool joins = !parts.empty() && items[parts.back().members.back()].group == item.group &&
                       parts.back().tokens + own <= max_tokens;
    if (!joins) parts.push_back({{}, item.shared});
    parts.back().members.push_back(i);
    parts.back().tokens += own;
  }
  return parts;
}

}  // namespace

std::vector<std::vector<uint32_t>> Pack(absl::Span<const PackItem> items, uint32_t max_tokens) {
  std::vector<Part> parts = MakeParts(items, max_tokens);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.tokens > b.tokens; });

  std::vector<std::vector<uint32_t>> bins;
  std::vector<uint64_t> used;
  size_t open = 0;  // All bins before this one are full.
  for (const Part& part : parts) {
    size_t bin = open;
    while (bin < bins.size() && used[bin] + part.tokens > max_tokens) ++bin;
    if (bin == bins.size()) {
      bins.emplace_back();
      used.push_back(0);
    }
    bins[bin].insert(bins[bin].end(), part.members.begin(), part.members.end());
    used[bin] += part.tokens;
    while (open < bins.size() && used[open] >= max_tokens) ++open;
  }
  for (std::vector<uint32_t>& bin : bins) std::sort(bin.begin(), bin.end());
  return bins;
}

std::vector<uint32_t> CutEvenly(uint32_t count, uint32_t parts) {
  std::vector<uint32_t> cuts(parts + 1);
  for (uint32_t p = 0; p <= parts; ++p)
    cuts[p] = static_cast<uint32_t>(static_cast<uint64_t>(count) * p / parts);
  return cuts;
}

}  // namespace sluice::trainer
