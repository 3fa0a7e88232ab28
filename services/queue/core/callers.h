#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "services/queue/core/counters.h"
#include "services/queue/core/event.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// Who may call: the workers that the controller listed, with their incarnations, and the answers
// kept for calls that come again.
//
// A worker is fenced once a newer incarnation of it was listed. The trainers form one group: the
// highest incarnation of any trainer fences the others.
class Callers {
 public:
  // `counters` outlives this object. Refused calls are counted there.
  explicit Callers(Counters* counters) : counters_(counters) {}

  // What is new about a worker of the list.
  struct Change {
    bool newer_worker = false;    // It has a higher incarnation than ever before.
    bool newer_trainers = false;  // It is a trainer with a higher incarnation than all before it.
  };
  // Begins a new list of workers, and adds a worker to it.
  void ClearList() { listed_.clear(); }
  Change AddToList(const Worker& worker);
  const std::map<std::string, Worker>& listed() const { return listed_; }
  WorkerRole RoleOf(const std::string& worker) const;

  // The incarnation of the trainers; 0: none was listed.
  int64_t trainer_incarnation() const { return trainer_incarnation_; }
  // The highest incarnation of the worker that was ever listed.
  int64_t incarnation(const std::string& worker) const { return fence_.at(worker); }

  // ABORTED FENCED: a newer incarnation of the caller, or of the trainers, was listed.
  absl::Status CheckNotFenced(const Caller& caller, WorkerRole role);
  // UNAVAILABLE: the caller is not listed yet. PERMISSION_DENIED: it has another role. kNone: any
  // role will do.
  absl::Status CheckListed(const Caller& caller, WorkerRole role);
  // Makes both checks.
  absl::Status CheckCaller(const Caller& caller, WorkerRole role);
  // Makes both checks for any role and counts nothing, so reads can use it too.
  absl::Status CheckKnown(const Caller& caller) const;
  // UNAVAILABLE: the caller was never listed, so it has no business with this job. A worker that
  // has left the list may still repeat calls.
  absl::Status CheckWasListed(const Caller& caller) const;
  // Whether a newer incarnation of the worker was listed. Counts nothing.
  bool IsFenced(const Caller& caller) const;

  // The answer kept for this request of the caller. Null: there is none.
  const Reply* FindKeptAnswer(const Caller& caller, const Id16& request) const;
  void KeepAnswer(const Caller& caller, const Id16& request, Reply reply);
  // The queue lost what was stored of members: kept answers to Admit grant them from token 0.
  void ForgetPrefixes();

 private:
  friend struct Access;  // dump.cc

  std::map<std::string, Worker> listed_;
  std::map<std::string, int64_t> fence_;  // Highest incarnation ever listed, by worker.
  int64_t trainer_incarnation_ = 0;
  // By worker: request ids of its last incarnation with the answers, newest last.
  std::map<std::string, std::deque<std::pair<Id16, Reply>>> kept_;
  Counters* const counters_;
};

}  // namespace sluice::queue
