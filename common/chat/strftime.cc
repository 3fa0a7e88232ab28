#include "common/chat/strftime.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::chat {
namespace {

constexpr absl::string_view kDays[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                       "Friday", "Saturday", "Sunday"};
constexpr absl::string_view kMonths[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};

class TimeFormatter {
 public:
  TimeFormatter(const Meter& meter, absl::Time time)
      : meter_(meter), now_(absl::UTCTimeZone().At(time)), second_(now_.cs) {}

  void Append(absl::string_view format, std::string* out) const {
    for (size_t i = 0; i < format.size(); ++i) {
      if (format[i] != '%' || i + 1 == format.size()) {
        out->push_back(format[i]);
        continue;
      }
      const bool bare = format[i + 1] == '-' && i + 2 < format.size();
      i += bare ? 2 : 1;
      Directive(format[i], bare, out);
      meter_.CheckText(out->size());
    }
  }

 private:
  void Directive(char c, bool bare, std::string* out) const {
    const auto number = [&](int64_t value, int width, char pad = '0') {
      std::string digits = absl::StrCat(value);
      if (!bare && static_cast<int>(digits.size()) < width)
        digits.insert(0, width - digits.size(), pad);
      *out += digits;
    };
    const int day = static_cast<int>(absl::GetWeekday(second_)),
              hour12 = (second_.hour() + 11) % 12 + 1;
    switch (c) {
      case 'a': absl::StrAppend(out, kDays[day].substr(0, 3)); break;
      case 'A': absl::StrAppend(out, kDays[day]); break;
      case 'b':
      case 'h': absl::StrAppend(out, kMonths[second_.month() - 1].substr(0, 3)); break;
      case 'B': absl::StrAppend(out, kMonths[second_.month() - 1]); break;
      case 'c': Append("%a %b %e %H:%M:%S %Y", out); break;
      case 'd': number(second_.day(), 2); break;
      case 'D':
      case 'x': Append("%m/%d/%y", out); break;
      case 'e': number(second_.day(), 2, ' '); break;
      case 'f': number(absl::ToInt64Microseconds(now_.subsecond), 6); break;
      case 'F': Append("%Y-%m-%d", out); break;
      case 'H': number(second_.hour(), 2); break;
      case 'I': number(hour12, 2); break;
      case 'j': number(absl::GetYearDay(absl::CivilDay(second_)), 3); break;
      case 'm': number(second_.month(), 2); break;
      case 'M': number(second_.minute(), 2); break;
      case 'n': out->push_back('\n'); break;
      case 'p': absl::StrAppend(out, second_.hour() < 12 ? "AM" : "PM"); break;
      case 'R': Append("%H:%M", out); break;
      case 'S': number(second_.second(), 2); break;
      case 't': out->push_back('\t'); break;
      case 'T':
      case 'X': Append("%H:%M:%S", out); break;
      case 'u': number(day + 1, 1); break;
      case 'w': number((day + 1) % 7, 1); break;
      case 'y': number(second_.year() % 100, 2); break;
      case 'Y': number(second_.year(), 1); break;
      case 'Z':
      case 'z': break;  // Python's naive times have no zone.
      case '%': out->push_back('%'); break;
      default: meter_.Unsupported(absl::StrCat("strftime_now: the directive %", std::string(1, c)));
    }
  }

  const Meter& meter_;
  const absl::TimeZone::CivilInfo now_;
  const absl::CivilSecond second_;
};

}  // namespace

std::string FormatTime(const Meter& meter, absl::Time time, absl::string_view format) {
  std::string out;
  TimeFormatter(meter, time).Append(format, &out);
  return out;
}

}  // namespace sluice::chat
