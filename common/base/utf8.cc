#include "common/base/utf8.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// What a lead byte says about its sequence.
struct Lead {
  int length;         // Bytes of the whole sequence; 0 if the byte cannot begin one.
  uint8_t low, high;  // Range of the second byte.
};

Lead LeadOf(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b >= 0xC2 && b <= 0xDF) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// The number of bytes at the start of `bytes` that belong together: either a whole sequence (*whole
// = true), or the maximal part of an ill-formed one (*whole = false). `bytes` is not empty.
size_t Subpart(absl::string_view bytes, bool* whole) {
  const Lead lead = LeadOf(static_cast<uint8_t>(bytes[0]));
  *whole = lead.length == 1;
  if (lead.length <= 1) return 1;
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) >= bytes.size()) return i;
    const uint8_t b = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (b < low || b > high) return i;
  }
  *whole = true;
  return lead.length;
}

}  // namespace

size_t Utf8Length(absl::string_view bytes) {
  if (bytes.empty()) return 0;
  bool whole = false;
  const size_t n = Subpart(bytes, &whole);
  return whole ? n : 0;
}

size_t Utf8IncompleteTail(absl::string_view bytes) {
  for (size_t n = 1; n <= 3 && n <= bytes.size(); ++n) {
    const absl::string_view tail = bytes.substr(bytes.size() - n);
    const uint8_t lead = static_cast<uint8_t>(tail[0]);
    if ((lead & 0xC0) == 0x80) continue;  // A continuation byte: the lead byte is further left.
    bool whole = false;
    return lead >= 0x80 && LeadOf(lead).length > static_cast<int>(n) && Subpart(tail, &whole) == n
               ? n
               : 0;
  }
  return 0;
}

bool IsUtf8(absl::string_view bytes) {
  while (!bytes.empty()) {
    // Skip ASCII eight bytes at a time.
    uint64_t eight = 0;
    while (bytes.size() >= 8 &&
           (std::memcpy(&eight, bytes.data(), 8), (eight & 0x8080808080808080) == 0))
      bytes.remove_prefix(8);
    if (bytes.empty()) break;
    const size_t n = Utf8Length(bytes);
    if (n == 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string Utf8Lossy(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    bool whole = false;
    const size_t n = Subpart(bytes, &whole);
    if (whole) {
      out.append(bytes.data(), n);
    } else {
      out.append("\xEF\xBF\xBD");
    }
    bytes.remove_prefix(n);
  }
  return out;
}

absl::string_view Utf8Prefix(absl::string_view bytes, size_t limit) {
  if (bytes.size() <= limit) return bytes;
  const absl::string_view start = bytes.substr(0, limit);
  return start.substr(0, limit - Utf8IncompleteTail(start));
}

std::string Excerpt(absl::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  return absl::StrCat(Utf8Prefix(text, limit), "..");
}

}  // namespace sluice
