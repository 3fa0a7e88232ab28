#include "common/base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice {

#ifdef SLUICE_FAILPOINTS
const bool kHasFailpoints = true;
#else
const bool kHasFailpoints = false;
#endif

namespace {

// What is armed at one name.
struct Armed {
  std::string action;
  int hits_left = 1;  // The action is due when this reaches 0.
};

absl::Status CheckAction(absl::string_view action) {
  for (const char* known : {"kill", "stop", "hang", "error"}) {
    if (action == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("failpoint action \"", action, "\" is none of kill, stop, hang, error"));
}

Mutex mu;
std::map<std::string, Armed, std::less<>>& ArmedFailpoints() {
  // The first call reads what the environment arms.
  static auto* const table = [] {
    auto* const fresh = new std::map<std::string, Armed, std::less<>>;
    const char* const spec = std::getenv("SLUICE_FAILPOINTS");
    for (absl::string_view item :
         absl::StrSplit(spec == nullptr ? "" : spec, ';', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(item, absl::MaxSplits('=', 1));
      const std::pair<absl::string_view, absl::string_view> action =
          absl::StrSplit(pair.second, absl::MaxSplits('@', 1));

      const absl::Status known = CheckAction(action.first);
      SLUICE_CHECK_MSG(known.ok(), absl::StrCat(item, ": ", known.message()));
      Armed armed{.action = std::string(action.first)};
      if (!action.second.empty())
        SLUICE_CHECK_MSG(absl::SimpleAtoi(action.second, &armed.hits_left), std::string(item));
      (*fresh)[std::string(pair.first)] = armed;
    }
    return fresh;
  }();
  return *table;
}
}  // namespace

absl::Status ArmFailpoint(absl::string_view name, absl::string_view action, int nth) {
  if (!kHasFailpoints) {
    return absl::UnimplementedError(
        "this build has no failpoints; configure with -DSLUICE_FAILPOINTS=ON");
  }
  if (action.empty()) {
    MutexLock lock(&mu);
    ArmedFailpoints().erase(std::string(name));
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(CheckAction(action));
  MutexLock lock(&mu);
  ArmedFailpoints()[std::string(name)] = {.action = std::string(action),
                                          .hits_left = nth < 1 ? 1 : nth};
  return absl::OkStatus();
}

absl::Status HitFailpoint(absl::string_view name) {
  if (!kHasFailpoints) return absl::OkStatus();

  std::string action;
  {
    MutexLock lock(&mu);
    const auto it = ArmedFailpoints().find(name);
    if (it == ArmedFailpoints().end() || --it->second.hits_left > 0) return absl::OkStatus();
    action = it->second.action;
    ArmedFailpoints().erase(it);
  }

  if (action == "kill") kill(getpid(), SIGKILL);
  if (action == "stop") {
    // kill(getpid(), ..) may stop the process through another thread, and this one would go on for
    // a moment, past the failpoint.
    raise(SIGSTOP);
    return absl::OkStatus();  // SIGCONT arrived: the process continues normally.
  }
  while (action == "hang") pause();
  return Error(absl::StatusCode::kUnavailable, "FAILPOINT", absl::StrCat("failpoint ", name));
}
}  // namespace sluice
