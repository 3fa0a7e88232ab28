#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/plugins/protocol.h"

namespace sluice {

// The calls of one instance of a plug-in that wait for their answers. An answer counts only for a
// call that waits, once, and with as many results as the call has items. Thread-safe.
class PluginCalls {
 public:
  // Reads answers until the deadline, and gives them to Take().
  using ReadAnswers = std::function<void(absl::Duration deadline)>;

  // `read`: how a caller reads the answers, of the other callers too. Only one of those that wait
  // is in it at a time. Null: they come from elsewhere.
  explicit PluginCalls(ReadAnswers read = nullptr) : read_(std::move(read)) {}

  // Returns the id of a new call.
  // UNAVAILABLE PLUGIN_GONE: End() was called.
  absl::StatusOr<uint64_t> Begin(size_t items);
  // The call needs no answer any more.
  void Forget(uint64_t id);
  // Waits for the answer of the call, which is forgotten after that.
  // DEADLINE_EXCEEDED: none came; call End() next. Others: what End() was given.
  absl::StatusOr<std::vector<PluginResult>> Await(uint64_t id, absl::Duration deadline);

  // A wrong number of results becomes an error of the call's answers.
  // INVALID_ARGUMENT: no call waits for this answer, and none has waited in vain.
  absl::Status Take(PluginAnswer answer);

  // What the first End() was given; OK before.
  absl::Status status() const;
  // All calls that wait end with `why`.
  void End(absl::Status why);

 private:
  struct Pending {
    size_t items = 0;
    bool done = false;
    absl::StatusOr<std::vector<PluginResult>> result{std::vector<PluginResult>()};
  };

  const ReadAnswers read_;
  mutable Mutex mu_;
  CondVar changed_;  // A call is done, or nobody reads any more.
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  bool late_ ABSL_GUARDED_BY(mu_) = false;  // A call had no answer in time. It may come still.
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
