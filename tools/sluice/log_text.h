#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::common::v1 {
enum LogLevel : int;
}  // namespace sluice::common::v1
namespace sluice::job::v1 {
class DaemonLine;
class LogsResponse;
}  // namespace sluice::job::v1

// Log lines of daemons, as `sluice job logs` prints them.
namespace sluice::cli {

// The text with each control character (U+0000 to U+001F, U+007F to U+009F), each one that changes
// the direction of text, and each byte that is not UTF-8 replaced by an escape such as \u001b, so
// that it can be shown on a terminal. In a JSON text the escapes mean the same characters.
std::string EscapeControls(absl::string_view text);

// For people, without a newline: time, level, daemon, event, and the other fields as key=value. A
// value stands in quotes if it is empty or has a space, a quote, an equals sign or a backslash. A
// line that is not JSON is shown as it is, escaped.
std::string LogLineText(const job::v1::DaemonLine& line, absl::TimeZone zone);

// What the answer says besides lines, for people: a line for each daemon that is silent or has lost
// lines. Empty: nothing.
std::string LogNotes(const job::v1::LogsResponse& response);

// debug, info, warning or error. INVALID_ARGUMENT: it is none of them.
absl::StatusOr<common::v1::LogLevel> ParseLogLevel(absl::string_view text);

}  // namespace sluice::cli
