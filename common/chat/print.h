#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/chat/value.h"

namespace sluice::chat {

// Appends Python's str(value). Fails if the text gets too long, and for values whose text in Python
// contains an address.
void AppendStr(Meter& meter, const Value& value, std::string* out);
std::string Str(Meter& meter, const Value& value);
// As repr(value), which puts strings in quotes.
void AppendRepr(Meter& meter, const Value& value, std::string* out);
std::string Repr(Meter& meter, const Value& value);

// Appends repr() of a float: the fewest digits that read back as the same value, as 0.1, 1e+20,
// inf.
void AppendFloat(double value, std::string* out);

// Python's "format % args" and "format".format(args). Fail as AppendStr().
std::string FormatPercent(Meter& meter, absl::string_view format, const Value& args);
std::string FormatBraces(Meter& meter, absl::string_view format, absl::Span<const Value> args,
                         absl::Span<const std::pair<absl::string_view, Value>> keywords);

// Python's str.replace: replaces all occurrences, or the first `count` (-1: all).
std::string ReplaceText(Meter& meter, absl::string_view text, absl::string_view old,
                        absl::string_view fresh, int64_t count);
std::string Spaces(Meter& meter, int64_t count);  // "" if negative.

// Replaces &, <, >, ' and " by HTML entities.
std::string EscapeHtml(absl::string_view text);

}  // namespace sluice::chat
