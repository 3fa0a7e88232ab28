#include "services/reward/worker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::reward {
namespace {

// The built-in verifiers take milliseconds.
constexpr absl::Duration kLongestScore = absl::Minutes(1);
// A task whose judge or plug-in failed, or is busy, rests before it is leased again.
constexpr absl::Duration kLongestRest = absl::Seconds(30), kBusyRest = absl::Seconds(5);
constexpr size_t kMaxInfo = 4096;   // Most bytes of the field reward_info.
constexpr size_t kMaxCause = 1024;  // Most bytes of ReleaseRequest.cause.

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// How long a task rests that was given back: the fewer tries are left, this one included, the
// longer.
absl::Duration RestAfter(uint32_t tries_left) {
  return kLongestRest / (1 << std::min(tries_left - std::min(tries_left, 1u), 5u));
}

std::string GroupOf(const queue::v1::Task& task) {
  const std::string group = absl::StrCat("group ", ToHex(task.owner().group()));
  return task.owner().has_member() ? absl::StrCat(group, ", member ", task.owner().member())
                                   : group;
}

// The members whose answers a task scores: one, or those of a group.
std::vector<common::v1::TrajectoryRef> OwnersOf(const queue::v1::Task& task) {
  if (task.owner().has_member()) return {task.owner()};
  return {task.members().begin(), task.members().end()};
}

// Whether the answer at this place of OwnersOf() was cut before its end.
bool IsTruncated(const queue::v1::Task& task, size_t place) {
  const auto i = static_cast<int>(place);
  const common::v1::Finish finish =
      task.owner().has_member() || i >= task.finishes_size() ? task.finish() : task.finishes(i);
  return finish != common::v1::FINISH_STOP;
}

// Adds the fields of a score to its record.
void AddScore(const Score& score, uint32_t generation, common::v1::Record* record,
              std::string* payload) {
  AddInlineField("reward_status", common::v1::DTYPE_U8, score.status, record);
  AddInlineField("reward_gen", common::v1::DTYPE_U32, BytesOf(generation), record);
  // An answer that cannot be scored has a reason and no number.
  if (score.status == "ok") {
    AddInlineField("task_reward", common::v1::DTYPE_F64, BytesOf(score.task_reward), record);
    const std::vector<int64_t> shape = {static_cast<int64_t>(score.parts.size())};
    AddField(
        "reward_parts", common::v1::DTYPE_F64, shape,
        {reinterpret_cast<const char*>(score.parts.data()), score.parts.size() * sizeof(double)},
        record, payload);
    if (!score.token_rewards.empty()) {
      const std::vector<double>& rewards = score.token_rewards;
      AddField("rew_tok", common::v1::DTYPE_F64, {static_cast<int64_t>(rewards.size() / 2), 2},
               {reinterpret_cast<const char*>(rewards.data()), rewards.size() * sizeof(double)},
               record, payload);
    }
  }
  const absl::string_view info = Utf8Prefix(score.info, kMaxInfo);
  const std::vector<int64_t> info_shape = {static_cast<int64_t>(info.size())};
  AddField("reward_info", common::v1::DTYPE_U8, info_shape, info, record, payload);
}

// What the rules of `scorer` said of the answers, as `scores` have it.
ScoredAnswers ScoredBy(const Scorer& scorer, std::vector<Answer> answers, nlohmann::json row,
                       std::string source, const std::vector<Score>& scores) {
  ScoredAnswers scored{.answers = std::move(answers),
                       .row = std::move(row),
                       .source = std::move(source),
                       .scores = {}};
  const std::vector<const RewardRule*> rules = scorer.rules();
  for (size_t i = 0; i < rules.size(); ++i) {
    std::vector<std::optional<RuleScore>>& of_rule = scored.scores[rules[i]->name];
    for (const Score& score : scores) {
      const bool given = score.status == "ok" && !std::isnan(score.parts[i]);
      if (given) of_rule.push_back(RuleScore{score.parts[i], score.part_credits[i]});
      else of_rule.push_back(std::nullopt);
    }
  }
  return scored;
}

// Whether the lease has ended or the member is no longer in the queue. Then this worker has nothing
// more to do for the task.
bool IsTaskGone(const absl::Status& status) {
  return ReasonOf(status) == "LEASE_LOST" || ReasonOf(status) == "GONE";
}

}  // namespace

Worker::Worker(Options options, std::shared_ptr<rpc::Channel> queue,
               std::shared_ptr<const Scorer> scorer, const Metrics& metrics,
               std::function<void(absl::Status why)> failed)
    : options_(std::move(options)),
      queue_(std::move(queue)),
      metrics_(metrics),
      failed_(std::move(failed)),
      waits_(options_.worker),
      client_(queue_, {.job = options_.job,
                       .worker = options_.worker,
                       .incarnation = options_.incarnation,
                       .cancel = &stop_}),
      leases_(&client_, {}),
      puts_(&client_),
      scorers_({{scorer->generation(), scorer}}),
      generation_(scorer->generation()),
      waiting_(options_.waiting),
      thread_([this] { Run(); }) {}

Worker::~Worker() { Stop(); }

void Worker::MoveQueue(const std::string& address) {
  log::Info("queue_moved", {{"job_id", options_.job_name}, {"address", address}});
  if (const absl::Status moved = queue_->MoveTo(address); !moved.ok())
    log::Error("bad_queue_address", {{"job_id", options_.job_name}, {"error", moved}});
}

void Worker::Stop() {
  if (!thread_.joinable()) return;
  stop_.Trigger();
  if (options_.on_stop) options_.on_stop();
  thread_.join();
  waiting_.Stop();
  // The leases are renewed up to here, because the thread above may have been scoring.
  leases_.Stop();
  puts_.Stop();
  if (const uint64_t count = refused_.TakeRest(); count > 0) {
    log::Info("scores_refused", {{"job_id", options_.job_name}, {"count", count}});
  }
  // The calls of client_ are cancelled by now, so another client, with a cancel token of its own,
  // gives the leases back.
  rpc::Cancel none;
  QueueClient releaser(queue_, {.job = options_.job,
                                .worker = options_.worker,
                                .incarnation = options_.incarnation,
                                .cancel = &none,
                                .give_up = absl::Seconds(2)});

  queue::v1::ReleaseRequest release;
  release.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  {
    MutexLock lock(&mu_);
    for (const std::string& lease : held_) release.add_leases(lease);
  }
  if (release.leases_size() == 0) return;
  const auto released = releaser.Release(release);
  if (!released.ok())
    log::Info("release_failed", {{"job_id", options_.job_name}, {"error", released.status()}});
}

std::vector<common::v1::WaitEdge> Worker::Explain() const {
  std::vector<common::v1::WaitEdge> edges = waits_.Edges();
  if (const PutStream::Backlog backlog = puts_.backlog(); backlog.records > 0) {
    edges.push_back(daemon::MakeWaitEdge(
        options_.worker, {.kind = "DAEMON",
                          .id = "queue",
                          .at = "queue",
                          .cause = absl::StrCat(options_.worker, " has ", backlog.records,
                                                " scores that the queue has not acknowledged"),
                          .next = "they are sent again if the connection breaks"}));
  }
  return edges;
}

void Worker::Run() {
  while (!stop_.triggered()) {
    const uint32_t count = AwaitRoom();
    if (count == 0) continue;
    const auto leased = client_.LeaseTasks(MakeLeaseRequest(count));

    absl::Status status = leased.status();
    {
      MutexLock lock(&mu_);
      status.Update(std::exchange(unput_, absl::OkStatus()));
    }
    if (leased.ok() && !status.ok())
      ReleaseLeases({leased->tasks().begin(), leased->tasks().end()});
    if (status.ok() && leased->tasks_size() > 0)
      status = ScoreTasks({leased->tasks().begin(), leased->tasks().end()});
    if (leased.ok()) ForgetScorers({leased->unused().begin(), leased->unused().end()});
    // An empty answer only means that no task became ready in time.
    if (status.ok() || stop_.triggered()) continue;

    // By the contract of QueueClient, NOT_YET and RESTORE_FIRST say that the job is still being set
    // up; the queue gives them only to trainers and rollouts so far. BUFFER_FULL: the queue is slow
    // to acknowledge scores.
    const std::string reason = ReasonOf(status);
    if (reason == "NOT_YET" || reason == "RESTORE_FIRST" || reason == "BUFFER_FULL") {
      const char* const at = reason == "BUFFER_FULL" ? "queue" : "trainer";
      const auto waits = waits_.Begin(
          {.kind = "DAEMON",
           .id = at,
           .at = at,
           .cause = absl::StrCat(options_.worker, " scores nothing: ", status.message())});
      if (stop_.WaitFor(absl::Milliseconds(200))) return;
      continue;
    }

    log::Error("scoring_ended", {{"job_id", options_.job_name}, {"error", status}});
    if (failed_) failed_(status);
    return;
  }
}

queue::v1::LeaseTasksRequest Worker::MakeLeaseRequest(uint32_t count) {
  queue::v1::LeaseTasksRequest request;
  queue::v1::Room* const room = request.add_rooms();
  room->set_pool(options_.pool);
  room->set_count(count);

  std::vector<uint32_t> over;
  for (const uint32_t generation : generations()) {
    if (request.generation() == 0) request.set_generation(generation);
    else if (options_.can_score && !options_.can_score(generation)) over.push_back(generation);
    else request.add_earlier(generation);
  }
  ForgetScorers(over);

  for (const auto& [name, version] : FindScorer(request.generation())->versions()) {
    queue::v1::RewardVersion& reward = *request.add_rewards();
    reward.set_name(name);
    reward.set_version(version);
  }
  return request;
}

void Worker::UseScorer(std::shared_ptr<const Scorer> scorer) {
  std::shared_ptr<const Scorer> replaced;  // Its plug-ins end without the lock, as that waits.
  MutexLock lock(&mu_);
  generation_ = scorer->generation();
  replaced = std::exchange(scorers_[generation_], std::move(scorer));
}

std::vector<uint32_t> Worker::generations() const {
  MutexLock lock(&mu_);
  std::vector<uint32_t> generations = {generation_};
  for (const auto& [generation, unused] : scorers_) {
    if (generation != generation_) generations.push_back(generation);
  }
  return generations;
}

std::shared_ptr<const Scorer> Worker::FindScorer(uint32_t generation) const {
  MutexLock lock(&mu_);
  const auto it = scorers_.find(generation == 0 ? generation_ : generation);
  return it == scorers_.end() ? nullptr : it->second;
}

void Worker::ForgetScorers(const std::vector<uint32_t>& generations) {
  std::vector<std::shared_ptr<const Scorer>> forgotten;  // Destroyed without the lock.
  MutexLock lock(&mu_);
  for (const uint32_t generation : generations) {
    const auto it = scorers_.find(generation);
    if (it == scorers_.end() || generation == generation_) continue;
    forgotten.push_back(std::move(it->second));
    scorers_.erase(it);
  }
}

uint32_t Worker::AwaitRoom() {
  if (options_.waiting == 0) return options_.room;
  const absl::StatusOr<uint32_t> capacity =
      options_.capacity ? options_.capacity() : options_.waiting;
  if (!capacity.ok()) {
    const auto waits = waits_.Begin(
        {.kind = "DAEMON",
         .id = options_.worker,
         .at = options_.worker,
         .cause = absl::StrCat(options_.worker, " scores nothing: ", capacity.status().message()),
         .next = DetailOf(capacity.status()).hint});
    stop_.WaitFor(absl::Seconds(1));
    return 0;
  }
  const uint32_t busy = options_.waiting - waiting_.free();
  const uint32_t most = std::min(*capacity, options_.waiting);
  if (busy < most) return std::min(options_.room, most - busy);
  waiting_.AwaitEnd(absl::Milliseconds(500));
  return 0;
}

absl::Status Worker::ScoreTasks(const std::vector<queue::v1::Task>& tasks) {
  for (const queue::v1::Task& task : tasks) {
    // Renew all leases from now on: the last answer may be scored much later than the first.
    leases_.Hold(task.lease().id());
    MutexLock lock(&mu_);
    held_.insert(task.lease().id());
  }
  if (options_.waiting == 0) metrics_.leased.Set(static_cast<double>(tasks.size()));
  SLUICE_FAILPOINT("reward.leased");

  size_t scored = 0;
  const absl::Status status = ScoreLeasedTasks(tasks, &scored);
  if (options_.waiting == 0) metrics_.leased.Set(0);
  // Nobody else scores a task while its lease is renewed here.
  if (!status.ok()) ReleaseLeases({tasks.begin() + static_cast<ptrdiff_t>(scored), tasks.end()});
  return status;
}

absl::Status Worker::ScoreLeasedTasks(const std::vector<queue::v1::Task>& tasks, size_t* scored) {
  const absl::StatusOr<std::vector<TaskInputs>> read = [&] {
    const auto reads = waits_.Begin({.kind = "DAEMON",
                                     .id = "queue",
                                     .at = "queue",
                                     .cause = absl::StrCat(options_.worker, " reads ", tasks.size(),
                                                           " answers from the queue")});
    return ReadInputs(tasks);
  }();

  SLUICE_RETURN_IF_ERROR(read.status());
  const std::vector<TaskInputs>& inputs = *read;
  for (size_t i = 0; i < tasks.size(); *scored = ++i) {
    const std::string what = absl::StrCat("task ", tasks[i].name(), " of ", GroupOf(tasks[i]));
    if (options_.waiting > 0) {
      ScoreWaiting(tasks[i], inputs[i], what);
      continue;
    }
    const auto scores =
        waits_.Begin({.kind = "CALL",
                      .id = "score",
                      .cause = absl::StrCat(options_.worker, " scores answer ", i + 1, " of the ",
                                            tasks.size(), " it leased: ", what)});
    watched_.Begin("scores an answer", kLongestScore);
    const absl::Status put = ScoreTask(tasks[i], inputs[i]);
    watched_.Rest();
    SLUICE_RETURN_IF_ERROR(put);
  }
  return absl::OkStatus();
}

void Worker::ScoreWaiting(const queue::v1::Task& task, const TaskInputs& inputs, std::string what) {
  metrics_.leased.Add(1);
  waiting_.Run([this, task, inputs, what = std::move(what)] {
    const auto scores = waits_.Begin({.kind = "CALL",
                                      .id = "score",
                                      .cause = absl::StrCat(options_.worker, " waits for the ",
                                                            options_.waits_for, " of ", what)});
    const absl::Status put = ScoreTask(task, inputs);
    metrics_.leased.Add(-1);
    if (put.ok()) return;
    ReleaseLeases({task});
    MutexLock lock(&mu_);
    unput_ = put;
  });
}

absl::Status Worker::ScoreTask(const queue::v1::Task& task, const TaskInputs& inputs) {
  std::vector<common::v1::TrajectoryRef> owners = OwnersOf(task);
  std::vector<size_t> places;  // Members that were dropped meanwhile are left out.
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].messages.empty()) continue;
    owners[places.size()] = owners[i];
    places.push_back(i);
  }
  owners.resize(places.size());
  if (places.empty()) {  // The task's lease has ended with its members.
    ForgetLease(task.lease().id());
    return absl::OkStatus();
  }

  const std::shared_ptr<const Scorer> scorer = FindScorer(task.generation());
  if (scorer == nullptr) {
    GiveBack(task, absl::ResourceExhaustedError(absl::StrCat(
                       "generation ", absl::Hex(task.generation(), absl::kZeroPad8),
                       " of the rewards, which has begun to score ", GroupOf(task), ", is over")));
    return absl::OkStatus();
  }
  const absl::Duration begin = Clock::Real()->Monotonic();
  const std::vector<Score> scores = ScoreAnswers(scorer, task, inputs, places);
  metrics_.seconds.Observe(absl::ToDoubleSeconds(Clock::Real()->Monotonic() - begin));
  for (const Score& score : scores) {
    if (score.fault.ok()) continue;
    GiveBack(task, score.fault);
    return absl::OkStatus();
  }
  for (const Score& score : scores)
    (score.status == "ok" ? metrics_.ok : metrics_.unscorable).Add();
  SLUICE_FAILPOINT("reward.scored");
  return PutScores(scorer->generation(), task, owners, scores);
}

std::vector<Score> Worker::ScoreAnswers(const std::shared_ptr<const Scorer>& scorer,
                                        const queue::v1::Task& task, const TaskInputs& inputs,
                                        const std::vector<size_t>& places) const {
  const std::string& source = task.row().source();
  const absl::StatusOr<nlohmann::json> row = ParseRow(task.row().json());
  std::vector<Score> scores(places.size());
  std::vector<Answer> answers;
  std::vector<size_t> readable;  // The index in `scores` of each of `answers`.
  for (size_t i = 0; i < places.size(); ++i) {
    absl::StatusOr<std::string> text = LastAnswer(inputs[places[i]].messages);
    if (text.ok() && row.ok()) {
      answers.push_back({.text = *std::move(text),
                         .truncated = IsTruncated(task, places[i]),
                         .data_source = source});
      readable.push_back(i);
      continue;
    }
    const absl::Status& why = row.ok() ? text.status() : row.status();
    scores[i] = {.status = "bad_row",
                 .parts = {},
                 .info = nlohmann::json{{"input", std::string(why.message())}}.dump()};
  }

  if (answers.empty()) return scores;
  std::vector<Score> read;
  if (scorer->scores_groups()) read = scorer->RunGroup(answers, *row, source);
  else
    for (const Answer& answer : answers) read.push_back(scorer->Run(answer, *row, source));
  if (options_.on_scored)
    options_.on_scored(scorer, ScoredBy(*scorer, answers, *row, source, read));

  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i].credits.empty()) {
      const std::string& ends = inputs[places[readable[i]]].ends;
      absl::StatusOr<std::vector<double>> rewards =
          TokenRewards(read[i].credits, ends, answers[i].text.size());
      if (rewards.ok()) read[i].token_rewards = *std::move(rewards);
      else read[i].fault = Annotate(rewards.status(), GroupOf(task));
    }
    scores[readable[i]] = std::move(read[i]);
  }
  return scores;
}

void Worker::GiveBack(const queue::v1::Task& task, const absl::Status& fault) {
  if (absl::IsCancelled(fault)) return;  // Stop() gives back whatever is held.
  metrics_.retried.Add();
  if (const auto count = faults_.Count(Clock::Real()->Monotonic())) {
    log::Warning("score_failed",
                 {{"job_id", options_.job_name}, {"count", *count}, {"error", fault}});
  }
  // A judge or plug-in that is busy has not failed, so that costs no try. `tries` are those
  // that are left.
  const bool busy = absl::IsResourceExhausted(fault);
  ReleaseLeases({task}, busy ? queue::v1::RELEASE_REASON_DRAIN : queue::v1::RELEASE_REASON_FAULT,
                busy ? kBusyRest : RestAfter(task.tries()), fault);
}

void Worker::ReleaseLeases(const std::vector<queue::v1::Task>& tasks,
                           queue::v1::ReleaseReason reason, absl::Duration not_before,
                           const absl::Status& why) {
  queue::v1::ReleaseRequest release;
  release.set_reason(reason);
  release.set_cause(std::string(Utf8Prefix(why.message(), kMaxCause)));
  if (not_before > absl::ZeroDuration()) *release.mutable_not_before() = rpc::ToProto(not_before);
  for (const queue::v1::Task& task : tasks) release.add_leases(task.lease().id());
  const absl::Status released = client_.Release(release).status();
  if (stop_.triggered()) return;  // Stop() gives back whatever is held.

  if (!released.ok()) {  // The leases expire, because they are renewed no more.
    log::Info("release_failed", {{"job_id", options_.job_name}, {"error", released}});
  }
  for (const queue::v1::Task& task : tasks) ForgetLease(task.lease().id());
}

absl::StatusOr<std::vector<Worker::TaskInputs>> Worker::ReadInputs(
    const std::vector<queue::v1::Task>& tasks) {
  std::vector<TaskInputs> inputs(tasks.size());
  const auto set = [](Inputs& of, const std::string& name, const std::string& bytes) {
    if (name == "messages") of.messages = bytes;
    if (name == "answer_ends") of.ends = bytes;
  };
  std::vector<const queue::v1::Task*> unread;
  std::set<Inputs*> gone;  // Those whose fields have not come.
  // From (group, member) to its inputs.
  std::map<std::pair<std::string, uint32_t>, Inputs*> place;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::vector<common::v1::TrajectoryRef> owners = OwnersOf(tasks[i]);
    inputs[i].resize(owners.size());
    if (owners.empty()) continue;
    // Only a member's task has fields.
    for (const common::v1::Field& field : tasks[i].fields())
      set(inputs[i][0], field.name(), field.inline_());
    if (tasks[i].wants().empty()) continue;
    unread.push_back(&tasks[i]);
    for (size_t j = 0; j < owners.size(); ++j) {
      gone.insert(&inputs[i][j]);
      place[{owners[j].group(), owners[j].member()}] = &inputs[i][j];
    }
  }

  const auto take = [&](const std::vector<QueueClient::Fetched>& fetched) {
    for (const QueueClient::Fetched& record : fetched) {
      const auto it = place.find({record.record.owner().group(), record.record.owner().member()});
      if (it == place.end()) continue;
      gone.erase(it->second);
      for (int f = 0; f < record.record.fields_size(); ++f)
        set(*it->second, record.record.fields(f).name(), record.fields[f]);
    }
  };

  // First try to read all answers at once.
  const absl::Status all = ReadAnswers(unread, take);
  if (!all.ok() && !IsTaskGone(all)) return all;
  // A lease is lost, perhaps only one: read the answers one by one.
  for (size_t i = 0; !all.ok() && i < unread.size(); ++i) {
    const absl::Status one = ReadAnswers({unread[i]}, take);
    if (!one.ok() && !IsTaskGone(one)) return one;
  }
  for (Inputs* const of : gone) *of = {};  // One of their fields may have come with the task.
  return inputs;
}

absl::Status Worker::ReadAnswers(
    const std::vector<const queue::v1::Task*>& tasks,
    const std::function<void(const std::vector<QueueClient::Fetched>&)>& take) {
  if (tasks.empty()) return absl::OkStatus();
  // What the queue no longer has is no error here: its task keeps an empty text.
  std::vector<common::v1::Want> wants, missing;
  for (const queue::v1::Task* const task : tasks)
    wants.insert(wants.end(), task->wants().begin(), task->wants().end());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<QueueClient::Fetched> fetched,
                          client_.GetAll(tasks[0]->lease().id(), wants, &missing));
  take(fetched);
  return absl::OkStatus();
}

void Worker::ForgetLease(const std::string& lease) {
  leases_.Forget(lease);
  MutexLock lock(&mu_);
  held_.erase(lease);
}

absl::Status Worker::PutScores(uint32_t generation, const queue::v1::Task& task,
                               const std::vector<common::v1::TrajectoryRef>& owners,
                               const std::vector<Score>& scores) {
  const bool of_member = task.owner().has_member();
  for (size_t i = 0; i < scores.size(); ++i) {
    common::v1::Record record;
    std::string payload;
    *record.mutable_owner() = owners[i];
    record.set_task(task.id());
    record.set_lease(task.lease().id());
    record.set_last(of_member);
    AddScore(scores[i], generation, &record, &payload);
    SLUICE_RETURN_IF_ERROR(PutRecord(std::move(record), std::move(payload)));
  }
  if (of_member) return absl::OkStatus();

  // A member may be dropped meanwhile, so the record that ends the task is one of the group.
  common::v1::Record end;
  *end.mutable_owner() = task.owner();
  end.set_task(task.id());
  end.set_lease(task.lease().id());
  end.set_last(true);
  return PutRecord(std::move(end), "");
}

absl::Status Worker::PutRecord(common::v1::Record record, std::string payload) {
  const std::string lease = record.lease();
  const bool last = record.last();
  return puts_.Put(
      std::move(record), std::move(payload), [this, lease, last](const PutOutcome& outcome) {
        if (absl::IsCancelled(outcome.status)) return;  // The worker stops, and gives it back.
        if (last) ForgetLease(lease);
        if (outcome.status.ok()) return;
        if (last) metrics_.late.Add();  // Another worker has the task now, or its member is gone.
        // A dropped group refuses the score of each of its members, so the log is limited.
        if (const auto count = refused_.Count(Clock::Real()->Monotonic())) {
          log::Info("scores_refused",
                    {{"job_id", options_.job_name}, {"count", *count}, {"last", outcome.status}});
        }
      });
}

}  // namespace sluice::reward
