#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/chat/value.h"

namespace sluice::chat {

// Appends str(value) of Python. Fails on a text longer than allowed, and on what prints differently
// each time (addresses).
void AppendStr(Meter& meter, const Value& value, std::string* out);
std::string Str(Meter& meter, const Value& value);
// repr(value): strings in quotes.
void AppendRepr(Meter& meter, const Value& value, std::string* out);
std::string Repr(Meter& meter, const Value& value);

// repr() of a float: the shortest digits that read back equal, as 0.1, 1e+20, inf.
void AppendFloat(double value, std::string* out);

// Python's "format % args" and "format".format(args), bounded as AppendStr.
std::string FormatPercent(Meter& meter, absl::string_view format, const Value& args);
std::string FormatBraces(Meter& meter, absl::string_view format, absl::Span<const Value> args,
                         absl::Span<const std::pair<absl::string_view, Value>> keywords);

// str.replace: all occurrences, or the first `count` of them (-1: all).
std::string ReplaceText(Meter& meter, absl::string_view text, absl::string_view old,
                        absl::string_view fresh, int64_t count);
std::string Spaces(Meter& meter, int64_t count);  // None if negative.

// &, <, >, ' and " as HTML entities.
std::string EscapeHtml(absl::string_view text);

}  // namespace sluice::chat
