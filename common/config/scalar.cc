#include "common/config/scalar.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"

namespace sluice::config {
namespace {

struct SizeUnit {
  const char* name;
  uint64_t bytes;
};
constexpr SizeUnit kSizeUnits[] = {
    {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};

// 100 years; far below the limit of protobuf's Duration.
constexpr absl::Duration kLongest = absl::Hours(24 * 36525);

absl::Status UnitError(absl::string_view text, absl::string_view wanted) {
  return Error(absl::StatusCode::kInvalidArgument, "UNIT", absl::StrCat("\"", text, "\" ", wanted));
}

// Splits `text` into the number at its start and the unit after it. Returns false if there is no
// number.
bool SplitNumber(absl::string_view text, double* number, absl::string_view* unit) {
  size_t end = 0;
  while (end < text.size() && (absl::ascii_isdigit(text[end]) || text[end] == '.')) ++end;
  *unit = text.substr(end);
  return absl::SimpleAtod(text.substr(0, end), number);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseDurationText(absl::string_view text) {
  double number = 0;
  absl::string_view unit;
  if (!SplitNumber(text, &number, &unit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a duration such as 30s or 1h30m"));
  }
  if (unit.empty()) return UnitError(text, "needs a unit: ms, s, m, h or d");
  absl::Duration value = absl::Hours(24) * number;
  if (unit != "d" && !absl::ParseDuration(text, &value))
    return UnitError(text, "is not a duration; the units are ms, s, m and h, or d alone");
  if (value > kLongest)
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is more than 100 years"));
  return value;
}

absl::StatusOr<uint64_t> ParseSizeText(absl::string_view text) {
  double number = 0;
  absl::string_view unit;
  if (!SplitNumber(text, &number, &unit)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a size such as 512MiB"));
  }

  if (unit.empty()) return UnitError(text, "needs a unit: B, KiB, MiB, GiB or TiB");
  for (const SizeUnit& known : kSizeUnits) {
    if (unit != known.name) continue;
    const double bytes = number * static_cast<double>(known.bytes);
    if (bytes >= 0x1p63)
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is more than 8388607TiB"));
    return static_cast<uint64_t>(std::llround(bytes));
  }
  return UnitError(text, "has an unknown unit; the units are B, KiB, MiB, GiB and TiB");
}

std::string DurationText(absl::Duration value) {
  const int64_t ns = absl::ToInt64Nanoseconds(value);
  if (ns == 0) return "0s";
  struct Unit {
    const char* name;
    int64_t ns;
  };
  for (const Unit& unit : {Unit{"h", 3600000000000}, Unit{"m", 60000000000}, Unit{"s", 1000000000},
                           Unit{"ms", 1000000}, Unit{"us", 1000}}) {
    if (ns % unit.ns == 0) return absl::StrCat(ns / unit.ns, unit.name);
  }
  return absl::StrCat(ns, "ns");
}

std::string SizeText(uint64_t bytes) {
  for (const SizeUnit& unit : kSizeUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0)
      return absl::StrCat(bytes / unit.bytes, unit.name);
  }
  return "0B";
}

std::string NumberText(double value) {
  std::string text;
  for (int digits : {6, 9, 12, 15, 17}) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) break;
  }
  return absl::StrReplaceAll(text, {{"e-0", "e-"}, {"e+0", "e"}, {"e+", "e"}});
}

std::string StringText(absl::string_view value) {
  bool plain = !value.empty() && (absl::ascii_isalnum(value[0]) || value[0] == '/' ||
                                  value[0] == '_' || value[0] == '.');
  for (char c : value)
    plain = plain && (absl::ascii_isalnum(c) || c == '/' || c == '_' || c == '.' || c == '-');
  double number;
  const std::string lower = absl::AsciiStrToLower(value);
  for (const char* word : {"true", "false", "null", "none", "auto", "yes", "no", "on", "off"})
    plain = plain && lower != word;
  if (plain && !absl::SimpleAtod(value, &number)) return std::string(value);
  return absl::StrCat(
      "\"",
      absl::StrReplaceAll(
          value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}, {"\t", "\\t"}, {"\r", "\\r"}}),
      "\"");
}

}  // namespace sluice::config
