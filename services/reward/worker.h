#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/watchdog.h"
#include "common/base/work_threads.h"
#include "common/daemon/waits.h"
#include "common/log/throttle.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/scoring/scorer.h"
#include "services/reward/comparison.h"
#include "services/reward/metrics.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::reward {

// Scores the tasks of one job: leases tasks that are ready, reads the answers and puts the scores.
// One call leases many tasks, one Get reads all their answers, and one message carries many of
// their scores.
//
// Tasks that compute are scored one after the other. Tasks that wait, for a judge, a plug-in, or a
// program in a sandbox, are scored on threads of their own, and no more of them are leased than
// threads are free.
//
// If a rule of the scorer scores groups, a task is one of a whole group: all its answers are scored
// at once, and its last record, which has no fields, ends it.
//
// When the rewards change (UseScorer()), groups that were begun by an earlier scorer are ended by
// it. It is kept until the queue says that there are no such groups any more.
//
// Owns one thread, which runs Run(), those for scores that wait, and those of its queue clients.
// Thread-safe.
class Worker {
 public:
  struct Options {
    std::string job;       // 32 hex digits.
    std::string job_name;  // For people.
    std::string worker;    // This daemon's id.
    int64_t incarnation = 0;
    uint32_t room = 256;  // Most tasks leased at once.
    // The pool of tasks that are leased (TaskPoolOf() in common/scoring/job_scorer.h).
    std::string pool = "cpu";
    uint32_t waiting = 0;  // Most scores that wait at a time. 0: scores do not wait for others.
    std::string waits_for = "judge";  // What they wait for, for people.
    // How many scores may wait now. An error: no task is leased for as long as it is returned.
    // Null: `waiting`.
    std::function<absl::StatusOr<uint32_t>()> capacity;
    // Whether this generation can still score, asked of earlier ones. Groups of one that cannot are
    // scored again by the one in use, after the straggler time. Null: they all can.
    std::function<bool(uint32_t generation)> can_score;
    // Called with answers that were scored. Null: nobody wants them.
    std::function<void(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored)> on_scored;
    // Called when the worker stops, so that scores that wait end soon. May be null.
    std::function<void()> on_stop;
  };
  // `queue` is the channel to the job's queue. `failed` is called on the worker's thread when the
  // work has ended for good, with the reason.
  Worker(Options options, std::shared_ptr<rpc::Channel> queue, std::shared_ptr<const Scorer> scorer,
         const Metrics& metrics, std::function<void(absl::Status why)> failed);
  ~Worker();  // Calls Stop().

  // From now on scores groups that nobody has begun by this scorer. A call for tasks that is parked
  // at the queue, for at most 30 s, still brings some for the one before. Thread-safe.
  void UseScorer(std::shared_ptr<const Scorer> scorer);
  // The generation in use, and then earlier ones.
  std::vector<uint32_t> generations() const;

  // The job's queue has another address now. Thread-safe.
  void MoveQueue(const std::string& address);
  // Joins the threads and gives the leases back, so that another worker can have them at once.
  // Idempotent.
  void Stop();
  // What this worker waits for. Calls that are parked at the queue are not listed, because the
  // queue reports them.
  std::vector<common::v1::WaitEdge> Explain() const;

 private:
  void Run();
  // Waits until tasks may be leased. Returns how many; 0: not yet.
  uint32_t AwaitRoom();
  queue::v1::LeaseTasksRequest MakeLeaseRequest(uint32_t count);
  // Null: the generation is not known here. 0, of a queue that names none, is the one in use.
  std::shared_ptr<const Scorer> FindScorer(uint32_t generation) const;
  // Forgets earlier generations, unless one of them is in use again.
  void ForgetScorers(const std::vector<uint32_t>& generations);
  // What the score of an answer needs of it.
  struct Inputs {
    std::string messages;  // Empty if the answer is gone.
    std::string ends;      // The field answer_ends; empty if the job does not ask for it.
  };
  // Those of a task, which is one of a member or of a group: in the order of OwnersOf().
  using TaskInputs = std::vector<Inputs>;
  // Scores a task on a thread of its own.
  void ScoreWaiting(const queue::v1::Task& task, const TaskInputs& inputs, std::string what);
  // Scores the tasks. After an error it gives back those that have no score.
  absl::Status ScoreTasks(const std::vector<queue::v1::Task>& tasks);
  // Sets *scored to the number of tasks, from the first, that need no more work.
  absl::Status ScoreLeasedTasks(const std::vector<queue::v1::Task>& tasks, size_t* scored);
  // Scores the answers of a task and puts the scores.
  absl::Status ScoreTask(const queue::v1::Task& task, const TaskInputs& inputs);
  // The scores of the answers with these places in `inputs`.
  std::vector<Score> ScoreAnswers(const std::shared_ptr<const Scorer>& scorer,
                                  const queue::v1::Task& task, const TaskInputs& inputs,
                                  const std::vector<size_t>& places) const;
  // Gives a task back that could not be scored now.
  void GiveBack(const queue::v1::Task& task, const absl::Status& fault);
  void ReleaseLeases(const std::vector<queue::v1::Task>& tasks,
                     queue::v1::ReleaseReason reason = queue::v1::RELEASE_REASON_DRAIN,
                     absl::Duration not_before = absl::ZeroDuration(),
                     const absl::Status& why = absl::OkStatus());
  // In the order of `tasks`.
  absl::StatusOr<std::vector<TaskInputs>> ReadInputs(const std::vector<queue::v1::Task>& tasks);
  // Reads the answers of `tasks` with one Get under the first one's lease, and passes them to
  // `take`.
  absl::Status ReadAnswers(
      const std::vector<const queue::v1::Task*>& tasks,
      const std::function<void(const std::vector<QueueClient::Fetched>&)>& take);
  // Sends the scores of these owners to the queue, which takes them all or none. After an error
  // they were not taken, and the task's lease is still held.
  absl::Status PutScores(uint32_t generation, const queue::v1::Task& task,
                         const std::vector<common::v1::TrajectoryRef>& owners,
                         const std::vector<Score>& scores);
  // Sends one record of a task. The task ends with its last one.
  absl::Status PutRecord(common::v1::Record record, std::string payload);
  // Stops renewing the lease, and does not give it back.
  void ForgetLease(const std::string& lease);

  const Options options_;
  const std::shared_ptr<rpc::Channel> queue_;
  const Metrics metrics_;
  const std::function<void(absl::Status why)> failed_;
  daemon::Waits waits_;
  rpc::Cancel stop_;
  QueueClient client_;
  LeaseKeeper leases_;
  // Limits the log lines about scores that the queue did not take. It must outlive `puts_`, whose
  // callbacks use it.
  log::Throttle refused_{absl::Seconds(10)};
  log::Throttle faults_{absl::Seconds(10)};  // The same about scores that failed.
  PutStream puts_;

  mutable Mutex mu_;
  // By generation: the scorer in use, and those by which groups may still have to be ended.
  std::map<uint32_t, std::shared_ptr<const Scorer>> scorers_ ABSL_GUARDED_BY(mu_);
  uint32_t generation_ ABSL_GUARDED_BY(mu_);  // In use.
  // Leases whose score the queue has not acknowledged yet.
  std::set<std::string> held_ ABSL_GUARDED_BY(mu_);
  // Why the last score of a waiting thread could not be put.
  absl::Status unput_ ABSL_GUARDED_BY(mu_);
  Watchdog::Loop watched_{ProcessWatchdog(), "score"};
  WorkThreads waiting_;
  std::thread thread_;
};

}  // namespace sluice::reward
