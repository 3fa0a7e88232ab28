#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "services/rollout/http/model.h"

namespace sluice::rollout::http {

// Requests of outsiders, beside the jobs' own work: of the HTTP API's clients and of
// EngineService's callers. Gives them ids, holds all of them to one limit, and brings each guest
// what the engines did for it.
//
// Thread-safe. Owns no thread.
class Guests {
 public:
  // What one step did for a guest. `request` of an event is the place of the request among the
  // guest's own; each ends with an event that says so, or with a failure. On the thread of
  // Stepped() or ModelLeft(), which may meet; must not block.
  using Sink = std::function<void(StepEvents events)>;

  explicit Guests(uint32_t most_requests = 4096) : most_requests_(most_requests) {}
  Guests(const Guests&) = delete;
  Guests& operator=(const Guests&) = delete;

  // Hands the requests to `model`, at least one. Ids are given here; numbers of groups, other than
  // 0, are the guest's own. Returns the guest, for Leave(); `sink` may have been called by then.
  // RESOURCE_EXHAUSTED: more requests than may run at once.
  absl::StatusOr<uint64_t> Add(std::shared_ptr<Model> model, std::vector<Request> requests,
                               Sink sink) ABSL_LOCKS_EXCLUDED(mu_);
  // What of the guest's requests still runs is aborted before the next step. Unknown, or all have
  // ended: nothing happens.
  void Leave(uint64_t guest) ABSL_LOCKS_EXCLUDED(mu_);

  // What an engine did for requests of guests.
  void Stepped(StepEvents events) ABSL_LOCKS_EXCLUDED(mu_);
  // Fails what runs on `model` with `why`.
  void ModelLeft(const Model* model, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  size_t running() const ABSL_LOCKS_EXCLUDED(mu_);  // Requests.

 private:
  struct Guest {
    std::shared_ptr<Model> model;
    std::shared_ptr<const Sink> sink;
    std::vector<bool> runs;  // By request.
    size_t open = 0;         // Of them, those that run.
  };
  using ById = std::map<uint64_t, Guest>;  // By the id of its first request; the others follow.
  struct News {
    std::shared_ptr<const Sink> sink;
    StepEvents events;
  };

  ById::iterator Find(uint64_t request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Ended(ById::iterator guest, uint64_t request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t most_requests_;
  mutable Mutex mu_;
  ById guests_ ABSL_GUARDED_BY(mu_);
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_request_ ABSL_GUARDED_BY(mu_) = kApiRequest + 1, next_group_ ABSL_GUARDED_BY(mu_) =
                                                                     kApiRequest + 1;
};

}  // namespace sluice::rollout::http
