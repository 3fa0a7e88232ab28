#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/status_text.h"
#include "services/controller/core/controller.h"
#include "services/controller/peers.h"

namespace sluice::controller {

// Sends a request to each of the job's workers of a role. `Answer` is a message with the fields
// `daemon`, `answer` and `error`; there is one for each worker, in their order. Call it on the
// loop's thread; `done` runs on a thread of `peers`, or at once if there is no such worker.
template <typename Answer, typename Request>
void AskAll(Peers& peers, const Controller& core, const Job& job, Role role, const Request& request,
            std::function<void(std::vector<Answer>)> done) {
  using Response = std::remove_cvref_t<decltype(std::declval<const Answer&>().answer())>;
  // The call that ends last hands out the answers.
  struct Collected {
    Mutex mu;
    size_t open ABSL_GUARDED_BY(mu) = 0;
    std::vector<Answer> answers ABSL_GUARDED_BY(mu);
  };
  auto all = std::make_shared<Collected>();
  std::vector<std::string> daemons;
  {
    MutexLock lock(&all->mu);
    for (const Worker& worker : job.assign.workers) {
      if (worker.role != role) continue;
      daemons.push_back(worker.id);
      all->answers.emplace_back().set_daemon(worker.id);
    }
    all->open = daemons.size();
  }
  if (daemons.empty()) return done({});

  for (size_t i = 0; i < daemons.size(); ++i) {
    auto asked = std::make_shared<Request>(request);
    auto answer = std::make_shared<Response>();
    peers.FillCall(job.record.id, asked->mutable_call());
    peers.CallDaemon(core.AddressOf(daemons[i]), asked, answer,
                     [all, i, answer, done](const absl::Status& status) {
                       std::vector<Answer> answers;
                       {
                         MutexLock lock(&all->mu);
                         if (status.ok()) all->answers[i].mutable_answer()->Swap(answer.get());
                         else all->answers[i].set_error(StatusText(status));
                         if (--all->open > 0) return;
                         answers.swap(all->answers);
                       }
                       done(std::move(answers));
                     });
  }
}

}  // namespace sluice::controller
