#include "tests/bench/queue/throughput_queue.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/testing/queue_spec.h"

namespace sluice::bench {
namespace {
void Must(const absl::Status& status) { SLUICE_CHECK_MSG(status.ok(), status.ToString()); }
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

QueueClient::Options ClientOf(const std::string& worker, bool shared_memory) {
  return {.job = kBenchJob, .worker = worker, .incarnation = 1, .shared_memory = shared_memory};
}
}  // namespace

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double OwnCpuSeconds() {
  rusage use = {};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

double CpuSeconds(pid_t pid) {
  const std::string text = Must(ReadFile(absl::StrCat("/proc/", pid, "/stat")));
  const std::vector<std::string> words = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  return (std::stod(words[11]) + std::stod(words[12])) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

QueueUnderTest::QueueUnderTest(const Options& options) : options_(options) {
  std::string name = "/tmp/bench_queue_XXXXXX";
  SLUICE_CHECK(mkdtemp(name.data()) != nullptr);
  dir_ = name;
  integration::Process::Options start{
      .binary = "sluice-queue",
      .args = {"--insecure-loopback", "--listen", "127.0.0.1:0", "--log-level", "warning",
               "--data-dir", dir_ + "/data"},
      .log = dir_ + "/log"};

  if (!options.shared_memory) start.args.push_back("--no-shared-memory");
  process_ = Must(integration::Process::Start(start));
  // The line begins {"listening": "127.0.0.1:1234", ..
  const std::string line = Must(process_->ReadLine(absl::Seconds(20)));
  const std::vector<std::string> words = absl::StrSplit(line, '"');
  channel_ = Must(rpc::Connect(words.at(3), {rpc::Role::kQueue}));
  rollout_ = std::make_unique<QueueClient>(channel_, ClientOf("r1", options.shared_memory));
  trainer_ = std::make_unique<QueueClient>(channel_, ClientOf("t1", false));
  SetUpJob();
}

QueueUnderTest::~QueueUnderTest() {
  rollout_.reset();
  trainer_.reset();
  process_.reset();
  Must(RemoveTree(dir_));
}

void QueueUnderTest::SetUpJob() {
  std::string rows;
  for (int i = 0; i < 10000; ++i)
    absl::StrAppend(&rows, "{\"prompt\": \"", i, "\", \"answer\": \"7\"}\n");
  Must(WriteFileAtomic(dir_ + "/rows.jsonl", rows));

  queue::v1::SetJobRequest set;
  set.mutable_call()->mutable_job()->set_job(kBenchJob);
  set.mutable_call()->mutable_job()->set_worker("controller");
  set.set_revision(1);
  set.set_phase(queue::v1::PHASE_OPEN);
  queue::v1::QueueSpec& spec = *set.mutable_spec();
  spec = SmallQueueSpec(dir_ + "/rows.jsonl");
  spec.set_job_name("bench");
  spec.mutable_queue()->set_groups_per_step(options_.groups + (options_.scorers == 0 ? 1 : 0));
  spec.set_group_size(kMembers);
  spec.set_group_min(kMembers);
  spec.mutable_queue()->set_max_staleness(0);
  spec.mutable_queue()->mutable_straggler()->mutable_wait()->set_seconds(600);
  spec.mutable_queue()->mutable_keep()->set_durability(options_.durability);
  spec.set_member_tokens(1);
  spec.set_token_bytes(static_cast<uint32_t>(options_.member_bytes));
  spec.mutable_queue()->mutable_keep()->set_quota(uint64_t{options_.groups + 1} * kMembers *
                                                  (options_.member_bytes + 8192) * 2);
  spec.mutable_queue()->mutable_keep()->mutable_lease()->set_seconds(600);
  (*spec.mutable_sources(0)->mutable_fields())["prompt"] = "prompt";
  (*spec.mutable_sources(0)->mutable_fields())["answer"] = "answer";
  if (options_.scorers == 0) spec.clear_tasks();
  for (queue::v1::TaskSpec& task : *spec.mutable_tasks()) {
    for (const char* field : {"reward_parts", "reward_gen", "reward_info"})
      task.add_produces(field);
  }
  // Each round drops its prompts, which counts as a failure of theirs.
  spec.mutable_queue()->mutable_straggler()->set_reissues(1000);
  const auto worker = [&](const char* id, rpc::v1::Role role) {
    common::v1::Worker& listed = *set.add_workers();
    listed.set_id(id);
    listed.set_role(role);
    listed.set_incarnation(1);
  };

  worker("t1", rpc::v1::ROLE_TRAINER);
  worker("r1", rpc::v1::ROLE_ROLLOUT);
  for (int i = 1; i <= options_.scorers; ++i)
    worker(absl::StrCat("w", i).c_str(), rpc::v1::ROLE_REWARD);
  queue::v1::SetJobResponse answer;
  Must(rpc::Call(*channel_, set, &answer, {}));

  queue::v1::RestoreRequest restore;
  restore.set_mode(queue::v1::RESTORE_MODE_REPLAY);
  Must(trainer_->Restore(restore).status());
  queue::v1::AdvanceVersionRequest advance;
  advance.mutable_next()->set_incarnation(1);
  Must(trainer_->AdvanceVersion(advance).status());
  queue::v1::RenewRequest renew;
  renew.add_loaded()->mutable_version()->set_incarnation(1);
  renew.mutable_loaded(0)->set_verified(true);
  Must(rollout_->Renew(renew).status());
}

std::vector<QueueUnderTest::Member> QueueUnderTest::MembersOf(
    const queue::v1::AdmitResponse& answer) {
  std::vector<Member> members;
  for (const queue::v1::Grant& grant : answer.grants()) {
    for (const queue::v1::Member& granted : grant.members()) {
      Member& member = members.emplace_back();
      member.ref.set_group(grant.group());
      member.ref.set_member(granted.member());
      member.ref.set_attempt(granted.attempt());
      member.lease = granted.lease().id();
    }
  }

  return members;
}

std::vector<QueueUnderTest::Member> QueueUnderTest::Admit(size_t count) {
  std::vector<Member> members;
  while (members.size() < count) {
    queue::v1::AdmitRequest request;
    request.set_room(static_cast<uint32_t>(count - members.size()));
    const auto answer = Must(rollout_->Admit(request));
    SLUICE_CHECK_MSG(answer.grants_size() > 0, answer.edge().cause());
    for (Member& member : MembersOf(answer)) members.push_back(std::move(member));
  }

  return members;
}

void QueueUnderTest::Drop(const std::vector<Member>& members) {
  for (size_t from = 0; from < members.size(); from += 500) {
    queue::v1::DropRequest request;
    for (size_t i = from; i < std::min(members.size(), from + 500); ++i) {
      queue::v1::DropItem& item = *request.add_items();
      *item.mutable_ref() = members[i].ref;
      item.set_lease(members[i].lease);
      item.set_reason("env_lost");
    }
    Must(rollout_->Drop(request).status());
  }
}

void QueueUnderTest::Release(const std::vector<Member>& members) {
  if (members.empty()) return;
  queue::v1::ReleaseRequest request;
  for (const Member& member : members) request.add_leases(member.lease);
  request.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  Must(rollout_->Release(request).status());
}

void QueueUnderTest::AwaitBatch() {
  while (!Must(trainer_->AcquireBatch({})).has_batch()) continue;
}

void QueueUnderTest::PutPrompts(const std::vector<Member>& members) {
  PutStream stream(rollout_.get());
  for (const Member& member : members) {
    if (member.ref.member() != 0) continue;
    common::v1::Record record;
    record.mutable_owner()->set_group(member.ref.group());
    record.set_lease(member.lease);
    record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
    record.mutable_piece()->set_count(1);
    std::string payload;
    AddField("tokens", common::v1::DTYPE_I32, std::vector<int64_t>{1}, std::string(4, '\1'),
             &record, &payload);
    Must(stream.Put(std::move(record), std::move(payload),
                    [](const PutOutcome& outcome) { Must(outcome.status); }));
  }
  Must(stream.Flush());
}

}  // namespace sluice::bench
