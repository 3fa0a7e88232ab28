#pragma once

#include <map>
#include <string>

#include "common/base/mutex.h"
#include "common/meta/store.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::controller {

// What the web page shows of ended jobs and only the store has. The core keeps little of an ended
// job in memory, and the page asks for the same jobs every second, so the answers are kept here.
//
// Thread-safe.
class EndedJobs {
 public:
  explicit EndedJobs(meta::Store* store) : store_(store) {}  // `store` outlives it.

  // Fills in the fields of the job's row that are null (RowOf() in view.h), and `max_staleness`.
  void Fill(nlohmann::ordered_json& row) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  nlohmann::ordered_json Read(const std::string& id) const;

  meta::Store* const store_;
  Mutex mu_;
  // As JSON text, by the job's id, state and step: a job that is retried gets new ones.
  std::map<std::string, std::string> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::controller
