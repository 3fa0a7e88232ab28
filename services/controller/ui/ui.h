#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/daemon/http_route.h"
#include "common/meta/store.h"
#include "nlohmann/json_fwd.hpp"
#include "services/controller/loop.h"
#include "services/controller/peers.h"

namespace sluice::controller {

class EndedJobs;
struct Query;

// The web page /ui: jobs with their curves, what each waits for, and the daemons. It can only be
// read, and shows what a viewer may see: no text of prompts and answers.
//
// The HTTP server has no authentication, so whoever reaches it sees the page. A request must name
// one of `hosts` in its header Host (common/base/loopback.h says why); names of loopback are always
// among them.
//
// Thread-safe: the HTTP server's threads call it. What they need of the core is read on the loop's
// thread. They read the store themselves, since that takes longer.
class Ui {
 public:
  // All arguments outlive the page.
  Ui(Loop* loop, Peers* peers, meta::Store* store, std::vector<std::string> hosts);
  ~Ui();

  daemon::HttpRoute MakeRoute();
  daemon::HttpResponse Answer(const daemon::HttpRequest& request);

 private:
  using Json = nlohmann::ordered_json;
  using Question = std::function<absl::StatusOr<Json>(Controller&, Instant)>;

  absl::StatusOr<Json> AnswerApi(absl::string_view path, const Query& query);
  absl::StatusOr<Json> ListJobs(const Query& query);
  absl::StatusOr<Json> DescribeJob(const std::string& id, const Query& query);
  absl::StatusOr<Json> ExplainJob(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks the loop's thread, and waits for its answer.
  // UNAVAILABLE: it did not answer in time; it waits for the job store.
  absl::StatusOr<Json> Ask(Question question);

  Loop* const loop_;
  Peers* const peers_;
  meta::Store* const store_;
  const std::vector<std::string> hosts_;
  const std::string run_;  // Differs in each process; see the cursor of steps.
  const std::unique_ptr<EndedJobs> ended_;

  Mutex mu_;
  // The daemons of a job are being asked what they wait for. They are asked for one job at a time,
  // so that viewers of the page cannot keep the threads busy that make the controller's own calls.
  bool explaining_ ABSL_GUARDED_BY(mu_) = false;
};

// The hosts of the flag --ui, which are separated by commas.
// INVALID_ARGUMENT: one is not a name or an address.
absl::StatusOr<std::vector<std::string>> ParseUiHosts(absl::string_view flag);

}  // namespace sluice::controller
