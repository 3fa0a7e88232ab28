#include "common/tokenizer/char_class.h"

#include <iterator>
#include <map>

#include "absl/strings/str_format.h"

namespace sluice {
namespace {

constexpr uint32_t kEnd = 0x110000;
constexpr uint32_t kRuns[] = {
#include "common/tokenizer/unicode_table.inc"
};
constexpr size_t kCount = std::size(kRuns);

uint32_t Begin(size_t run) { return run == kCount ? kEnd : kRuns[run] >> 8; }
uint8_t Class(size_t run) { return kRuns[run] & 0x7F; }
bool Newer(size_t run) { return (kRuns[run] & 0x80) != 0; }

}  // namespace

CharTable::CharTable() {
  std::vector<uint8_t> flat(kEnd);
  for (size_t run = 0; run < kCount; ++run)
    std::fill(flat.begin() + Begin(run), flat.begin() + Begin(run + 1), Class(run));
  std::map<std::vector<uint8_t>, uint16_t> known;
  for (uint32_t at = 0; at < kEnd; at += 1 << kBits) {
    const std::vector<uint8_t> block(flat.begin() + at, flat.begin() + at + (1 << kBits));
    const auto [it, added] = known.try_emplace(block, static_cast<uint16_t>(known.size()));
    if (added) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_.push_back(it->second);
  }
}

std::string CharTable::Ranges(CharMask mask, bool all) const {
  std::string out;
  for (size_t run = 0; run < kCount; ++run) {
    if ((all || Newer(run)) && (mask >> Class(run) & 1) != 0)
      absl::StrAppendFormat(&out, "\\x{%X}-\\x{%X}", Begin(run), Begin(run + 1) - 1);
  }
  return out;
}

}  // namespace sluice
