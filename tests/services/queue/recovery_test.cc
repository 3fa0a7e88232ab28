#include <map>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "services/queue/fsck.h"
#include "services/queue/jobs.h"
#include "tests/services/queue/core/harness.h"

// What becomes of the jobs in a data directory when the queue is started again.
namespace sluice::queue {
namespace {

constexpr char kJob[] = "00112233445566778899aabbccddeeff",
               kOther[] = "ffeeddccbbaa99887766554433221100";

class RecoveryTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing_data::TempPath("queue_recovery");
    ASSERT_TRUE(MakeDirs(dir_).ok());
    WriteRows("prompt");
    Start();
  }

  void TearDown() override {
    table_.reset();
    EXPECT_TRUE(RemoveTree(dir_).ok());
  }

  void WriteRows(const std::string& text) {
    std::string rows;
    for (int i = 0; i < 50; ++i) absl::StrAppend(&rows, "{\"prompt\": \"", text, " ", i, "\"}\n");
    ASSERT_TRUE(WriteFileAtomic(RowsPath(), rows).ok());
  }

  std::string RowsPath() const { return dir_ + "/rows.jsonl"; }
  std::string DataDir() const { return dir_ + "/data"; }

  // Starts a queue as the next incarnation.
  void Start() {
    table_ = std::make_unique<JobTable>(JobTable::Options{
        .incarnation = 0,
        .data_dir = DataDir(),
        .log = {.segment_bytes = 1 << 20, .low_bytes = 0, .reserve_bytes = 64 << 10}});
    ASSERT_TRUE(table_->Recover().ok());
    table_->SetIncarnation(++incarnation_);
  }

  void Restart() {
    table_.reset();
    Start();
  }

  Spec SpecOf(Durability durability) const {
    Spec spec = SmallSpec();
    spec.durability = durability;
    spec.sources = {
        {.name = "rows", .path = RowsPath(), .weight = 1, .fields = {{"prompt", "prompt"}}}};
    return spec;
  }

  Reply Set(const std::string& job, SetJob set) {
    std::optional<Reply> result;
    Mutex mu;
    CondVar changed;
    table_->SetJob(job, "test", {"controller", 0}, std::move(set), [&](Reply reply) {
      MutexLock lock(&mu);
      result = std::move(reply);
      changed.NotifyAll();
    });
    MutexLock lock(&mu);
    while (!result) changed.Wait(&mu);
    return *std::move(result);
  }

  // The first SetJob of a job.
  SetJob First(Durability durability) const {
    return {.revision = 1,
            .spec = SpecOf(durability),
            .workers = {{"t1", WorkerRole::kTrainer, 1}, {"r1", WorkerRole::kRollout, 1}}};
  }

  template <typename T>
  absl::StatusOr<T> Call(const std::string& job, const Caller& caller, Input input) {
    const auto runner = table_->Find(job);
    if (!runner.ok()) return runner.status();
    std::optional<Reply> result;
    Mutex mu;
    CondVar changed;
    (*runner)->Run(caller, std::move(input), [&](Reply reply) {
      MutexLock lock(&mu);
      result = std::move(reply);
      changed.NotifyAll();
    });
    MutexLock lock(&mu);
    while (!result) changed.Wait(&mu);
    if (const auto* status = std::get_if<absl::Status>(&*result)) return *status;
    return std::get<T>(*result);
  }

  // All files of the job, by name.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    const std::vector<std::string> names = ListDir(JobDir(DataDir(), kJob)).value();
    for (const std::string& name : names)
      files[name] = *ReadFile(JobDir(DataDir(), kJob) + "/" + name);
    return files;
  }

  std::string dir_;
  int64_t incarnation_ = 0;
  std::unique_ptr<JobTable> table_;
};

TEST_F(RecoveryTest, AJobThatMustOutliveItsQueueNeedsADataDirectory) {
  table_ = std::make_unique<JobTable>(JobTable::Options{.incarnation = 1});
  const Reply reply = Set(kJob, First(Durability::kFull));
  ASSERT_TRUE(std::holds_alternative<absl::Status>(reply));

  const absl::Status& status = std::get<absl::Status>(reply);
  EXPECT_EQ(ReasonOf(status), "NO_DATA_DIR");
  EXPECT_THAT(DetailOf(status).hint, testing::HasSubstr("--data-dir"));
  EXPECT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kOther, First(Durability::kMemory))));
}

TEST_F(RecoveryTest, AllJobsComeBackUnderTheNextIncarnationAndASetJobIsARepeat) {
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kOther, First(Durability::kMetadata))));
  ASSERT_TRUE(Call<RestoreAnswer>(kJob, {"t1", 1}, Restore{}).ok());

  Restart();
  const Reply reply = Set(kJob, First(Durability::kFull));
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(reply)) << std::get<absl::Status>(reply);

  const SetJobAnswer& answer = std::get<SetJobAnswer>(reply);
  EXPECT_TRUE(answer.repeat);
  EXPECT_TRUE(answer.restored);
  EXPECT_EQ(answer.incarnation, 2);
  EXPECT_TRUE(std::get<SetJobAnswer>(Set(kOther, First(Durability::kMetadata))).repeat);
  EXPECT_EQ(table_->All().size(), 2u);
}

TEST_F(RecoveryTest, ASetJobThatComesAsTheIncarnationDoesFindsTheJobRecovered) {
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  for (int round = 1; round <= 20; ++round) {  // Chance decides which call is first.
    table_.reset();
    table_ = std::make_unique<JobTable>(JobTable::Options{.incarnation = 0, .data_dir = DataDir()});
    ASSERT_TRUE(table_->Recover().ok());

    std::thread registered([&] { table_->SetIncarnation(round + 1); });
    Reply reply = Set(kJob, First(Durability::kFull));
    while (std::holds_alternative<absl::Status>(reply) &&
           ReasonOf(std::get<absl::Status>(reply)) == "NOT_REGISTERED")
      reply = Set(kJob, First(Durability::kFull));
    registered.join();
    ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(reply)) << std::get<absl::Status>(reply);
    EXPECT_TRUE(std::get<SetJobAnswer>(reply).repeat);
  }
}

TEST_F(RecoveryTest, UntilTheIncarnationIsKnownCallsAreToldToComeAgain) {
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  table_.reset();
  table_ = std::make_unique<JobTable>(JobTable::Options{.incarnation = 0, .data_dir = DataDir()});
  ASSERT_TRUE(table_->Recover().ok());

  EXPECT_TRUE(absl::IsUnavailable(table_->Find(kJob).status()));
  EXPECT_EQ(ReasonOf(std::get<absl::Status>(Set(kJob, First(Durability::kFull)))),
            "NOT_REGISTERED");

  table_->SetIncarnation(1);  // The controller lost its count, but the job has its own.
  EXPECT_EQ(std::get<SetJobAnswer>(Set(kJob, First(Durability::kFull))).incarnation, 2);
}

TEST_F(RecoveryTest, AFreedJobLeavesNothingBehind) {
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  EXPECT_TRUE(PathExists(JobDir(DataDir(), kJob)));

  SetJob freed = First(Durability::kFull);
  freed.revision = 2;
  freed.phase = Phase::kFreed;
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, freed)));
  EXPECT_TRUE(ListDir(JobsDir(DataDir()))->empty());

  Restart();
  EXPECT_TRUE(table_->All().empty());
  EXPECT_TRUE(std::get<SetJobAnswer>(Set(kJob, freed)).repeat) << "freed again is a repeat";
}

TEST_F(RecoveryTest, AJobWhoseDataChangedIsRefusedByNameAndTheOthersGoOn) {
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  SetJob other = First(Durability::kFull);
  const std::string rows = dir_ + "/other.jsonl";
  ASSERT_TRUE(WriteFileAtomic(rows, "{\"prompt\": \"x\"}\n").ok());
  other.spec.sources[0].path = rows;
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kOther, other)));

  table_.reset();
  WriteRows("another prompt");
  Start();

  const absl::Status refused = table_->Find(kJob).status();
  EXPECT_EQ(ReasonOf(refused), "DATA_CHANGED") << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr(RowsPath()));
  EXPECT_EQ(ReasonOf(std::get<absl::Status>(Set(kJob, First(Durability::kFull)))), "DATA_CHANGED");
  EXPECT_TRUE(table_->Find(kOther).ok());

  // When its data is there again, the job goes on.
  WriteRows("prompt");
  Restart();
  EXPECT_TRUE(table_->Find(kJob).ok());
}

TEST_F(RecoveryTest, ADamagedJobIsRefusedAndMayBeFreed) {
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  table_.reset();

  const std::vector<std::string> names = ListDir(JobDir(DataDir(), kJob)).value();
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, "snapshot")) continue;
    const std::string path = JobDir(DataDir(), kJob) + "/" + name;
    std::string bytes = *ReadFile(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    ASSERT_TRUE(WriteFileAtomic(path, bytes).ok());
  }

  const auto report = FsckDataDir(DataDir());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->ok());
  EXPECT_TRUE(absl::IsDataLoss(report->jobs[0].status)) << report->jobs[0].status;

  Start();
  EXPECT_TRUE(absl::IsDataLoss(table_->Find(kJob).status())) << table_->Find(kJob).status();

  SetJob freed = First(Durability::kFull);
  freed.revision = 2;
  freed.phase = Phase::kFreed;
  EXPECT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, freed)));
  EXPECT_TRUE(ListDir(JobsDir(DataDir()))->empty());
}

TEST_F(RecoveryTest, FsckReadsADirectoryAtRestAndChangesNothing) {
  EXPECT_TRUE(absl::IsNotFound(FsckDataDir(dir_).status()));
  ASSERT_TRUE(std::holds_alternative<SetJobAnswer>(Set(kJob, First(Durability::kFull))));
  ASSERT_TRUE(Call<RestoreAnswer>(kJob, {"t1", 1}, Restore{}).ok());
  ASSERT_TRUE(Call<AdvanceVersionAnswer>(kJob, {"t1", 1}, AdvanceVersion{.next = {1, 0}}).ok());
  ASSERT_TRUE(Call<RenewAnswer>(kJob, {"r1", 1}, Renew{.loaded = {{0, {1, 0}, true}}}).ok());
  ASSERT_EQ(Call<AdmitAnswer>(kJob, {"r1", 1}, Admit{.room = 4})->grants.size(), 2u);

  {
    const auto owner = DirLock::Acquire(DataDir());
    ASSERT_TRUE(owner.ok());
    EXPECT_EQ(ReasonOf(FsckDataDir(DataDir()).status()), "DATA_DIR_IN_USE");
  }

  table_.reset();
  ASSERT_TRUE(RemoveTree(RowsPath()).ok());  // The check needs no data files.
  const auto before = Files();

  const auto report = FsckDataDir(DataDir());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->ok());
  ASSERT_EQ(report->jobs.size(), 1u);
  EXPECT_EQ(report->jobs[0].name, "test");
  EXPECT_EQ(report->jobs[0].durability, Durability::kFull);
  EXPECT_EQ(report->jobs[0].ledger.accepted, 4);
  EXPECT_EQ(report->jobs[0].groups, 2u);
  EXPECT_TRUE(Files() == before);
}

}  // namespace
}  // namespace sluice::queue
