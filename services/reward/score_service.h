#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/scoring/scorer.h"

namespace grpc {
class Service;
}
namespace sluice::rpc {
class CallerTable;
}

namespace sluice::reward {

// Serves ScoreService: scores answers of evaluations, which are in no queue, for the rollouts of
// the jobs that this daemon scores for. Register service() with a server before that starts.
//
// Thread-safe. Owns the threads on which these answers are scored.
class ScoreServer {
 public:
  // `callers` knows which daemons work for which job, and outlives the server.
  explicit ScoreServer(const rpc::CallerTable* callers);
  ~ScoreServer();
  grpc::Service* service();

  // Accepts calls for the job, and scores at most `most` of them at a time. What `scorer` uses must
  // live until RemoveJob(). If the job is known already, later calls are scored by the new scorer.
  void SetJob(const std::string& job, Scorer scorer, uint32_t most);
  // Ends the calls that wait in line, and returns when those that are being scored have ended. Does
  // nothing if the job is unknown.
  void RemoveJob(const std::string& job);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::reward
