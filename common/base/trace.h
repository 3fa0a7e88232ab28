#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// Which chain of calls a piece of work belongs to, in the form of W3C Trace Context
// (https://www.w3.org/TR/trace-context/). It only joins log lines: nothing is recorded or exported.
struct Trace {
  std::string id;        // 32 lower-case hex digits, not all zeros. Empty: there is no trace.
  bool sampled = false;  // The flag of that name, which is passed on as it came.

  bool empty() const { return id.empty(); }
};

// The name of the header, as gRPC wants it.
inline constexpr char kTraceHeader[] = "traceparent";

// A trace with a random id.
Trace MakeTrace();

// The header of one call in the trace, which must not be empty: version 00, with a random parent
// id.
std::string FormatTraceparent(const Trace& trace);

// Reads a header. The caller is not trusted: nothing is taken from it but the id and the flag, and
// only if it has the exact syntax. Lower-case hex; version 00 with 55 characters, or a later
// version that begins in the same way and has at most 256; not version ff; neither id all zeros.
// Returns nothing if it is malformed.
std::optional<Trace> ParseTraceparent(absl::string_view header);

// The trace of what the calling thread does now: that of the innermost TraceScope, else that of the
// process, else an empty one.
const Trace& CurrentTrace();

// The trace of all threads of this process that are in no scope, for a program that makes one chain
// of calls. Call it once, before other threads start.
void SetProcessTrace(Trace trace);

// While it lives, this is the calling thread's trace. It belongs to its thread alone: work that is
// handed to another thread is in no scope there, unless whoever hands it over takes CurrentTrace()
// along and opens a scope with it. An empty trace changes nothing.
class TraceScope {
 public:
  explicit TraceScope(const Trace& trace);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const Trace trace_;
  const Trace* outer_ = nullptr;
};

}  // namespace sluice
