#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "services/rollout/core/engine/request_owner.h"
#include "services/rollout/http/model.h"

namespace sluice::rollout::http {

// The engine's requests that are not the job's own work: those of the HTTP API's clients and of
// EngineService's callers. The requests of one Add() belong to one guest: a call, or one sequence
// of a Score call. This class gives the requests their ids, applies one limit to all of them, and
// gives each guest the events of its requests.
//
// Thread-safe. Owns no thread.
class Guests {
 public:
  // Gets what one step did for a guest. `request` of an event is the index of the request among the
  // guest's own. Each request ends with an event whose `finish` is set, or with a failure. It is
  // called on the thread of DeliverEvents() or FailRequestsOf(), perhaps on both at once, and must
  // not block.
  using Sink = std::function<void(StepEvents events)>;

  explicit Guests(uint32_t most_requests = 4096) : most_requests_(most_requests) {}
  Guests(const Guests&) = delete;
  Guests& operator=(const Guests&) = delete;

  // Hands requests, at least one, to `model`. Their ids are set here. A group number other than 0
  // is the guest's own, and is made unique here. Returns the guest's number, for AbortGuest();
  // `sink` may have been called by then.
  // RESOURCE_EXHAUSTED BUSY: more requests than may run at once.
  absl::StatusOr<uint64_t> Add(std::shared_ptr<Model> model, std::vector<Request> requests,
                               Sink sink) ABSL_LOCKS_EXCLUDED(mu_);
  // Aborts those of the guest's requests that still run, before the engine's next step. Does
  // nothing if the guest is unknown or all its requests have ended.
  void AbortGuest(uint64_t guest) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes what a step of an engine did for guests' requests.
  void DeliverEvents(StepEvents events) ABSL_LOCKS_EXCLUDED(mu_);
  // Fails with `why` all requests that run on `model`.
  void FailRequestsOf(const Model* model, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  size_t running() const ABSL_LOCKS_EXCLUDED(mu_);  // Number of requests.

 private:
  struct Guest {
    std::shared_ptr<Model> model;
    std::shared_ptr<const Sink> sink;
    std::vector<bool> runs;  // By request: it has not ended.
    size_t open = 0;         // Number of requests that have not ended; at least 1.
  };
  // By the id of the guest's first request; its other ids follow.
  using ById = std::map<uint64_t, Guest>;
  // Events of one step for one guest, to be delivered without the lock.
  struct Delivery {
    std::shared_ptr<const Sink> sink;
    StepEvents events;
  };

  ById::iterator Find(uint64_t request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRequest(ById::iterator guest, uint64_t request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t most_requests_;
  mutable Mutex mu_;
  ById guests_ ABSL_GUARDED_BY(mu_);
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;  // Sum of Guest::open.
  uint64_t next_request_ ABSL_GUARDED_BY(mu_) = FirstRequestId(RequestOwner::kGuest) + 1;
  uint64_t next_group_ ABSL_GUARDED_BY(mu_) = FirstRequestId(RequestOwner::kGuest) + 1;
};

}  // namespace sluice::rollout::http
