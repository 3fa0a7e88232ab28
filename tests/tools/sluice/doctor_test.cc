// Each test plants one fault, and sees that exactly the check for it fails, with a fix.
#include "tools/sluice/doctor/doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/daemon/daemon.h"
#include "common/daemon/ops_server.h"
#include "common/metrics/metrics.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/convert.h"
#include "tests/integration/harness/tmpfs.h"

namespace sluice::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kIdentity[] = "spiffe://test/sluice/operator/anna";

// A socket that listens on a free port of loopback.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof where;
    SLUICE_CHECK(bind(fd.get(), reinterpret_cast<sockaddr*>(&where), size) == 0);
    SLUICE_CHECK(listen(fd.get(), 16) == 0);
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where), &size);
    address = absl::StrCat("127.0.0.1:", ntohs(where.sin_port));
  }
  const Fd fd;
  std::string address;
};

void WriteText(const std::string& path, const std::string& text) {
  ASSERT_TRUE(MakeDirs(std::filesystem::path(path).parent_path()).ok());
  ASSERT_TRUE(WriteFileAtomic(path, text).ok());
}

// A host, a fleet and a job without a fault.
class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() : dir_(::testing::TempDir() + "doctor-" + std::to_string(getpid())) {
    (void)RemoveTree(dir_);
    in_.now = absl::Now();
    in_.monotonic = [] { return Clock::Real()->Monotonic(); };
    in_.listen = {"127.0.0.1:0"};
    in_.data_dir = dir_ + "/data";
    in_.tls_dir = dir_ + "/tls";
    in_.job_file = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";
    in_.sets = {"checkpoint.dir=" + dir_ + "/checkpoints"};
    in_.policy_file = SLUICE_SOURCE_DIR "/configs/policy.yaml";
    in_.program_dir = dir_ + "/bin";
    WriteProgram("sluice-queue", absl::StrCat("echo ", daemon::kBuild));
    EXPECT_TRUE(MakeDirs(in_.data_dir).ok());
    IssueCertificate(in_.now - absl::Hours(24), in_.now + absl::Hours(24 * 90));

    metrics::AddProcessMetrics(&metrics_, "queue", daemon::kBuild);
    ops_ = *daemon::OpsServer::Start(
        "127.0.0.1:0", &metrics_,
        {.live = [] { return absl::OkStatus(); }, .ready = [] { return "ok"; }});
    in_.server = listener_.address;
    FleetAnswer answer{.address = in_.server, .asked = in_.now, .answered = in_.now};
    for (const auto& [role, name] :
         {std::pair{rpc::v1::ROLE_QUEUE, "queue-0"}, std::pair{rpc::v1::ROLE_ROLLOUT, "rollout-0"},
          std::pair{rpc::v1::ROLE_REWARD, "reward-0"},
          std::pair{rpc::v1::ROLE_TRAINER, "trainer-0"}}) {
      admin::v1::Daemon& daemon = *answer.daemons.add_daemons();
      daemon.set_daemon(name);
      daemon.set_role(role);
      daemon.set_build(daemon::kBuild);
      (*daemon.mutable_addresses())["grpc"] = listener_.address;
      (*daemon.mutable_addresses())["ops"] = ops_->address();
    }
    *answer.daemons.mutable_now() = rpc::ToProto(in_.now);
    in_.answer = std::move(answer);
  }

  ~DoctorTest() override { (void)RemoveTree(dir_); }

  // A program of the daemons that does `body` when it is asked for its version.
  void WriteProgram(const std::string& name, const std::string& body) {
    const std::string path = in_.program_dir + "/" + name;
    WriteText(path, absl::StrCat("#!/bin/sh\n", body, "\n"));
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }

  void IssueCertificate(absl::Time from, absl::Time until,
                        const std::string& identity = kIdentity) {
    const pki::Validity always = {in_.now - absl::Hours(24 * 900), in_.now + absl::Hours(24 * 900)};
    authority_ = *pki::MakeAuthority({.name = "test", .uri = "spiffe://test"}, always);
    pki::KeyPair pair =
        *pki::IssueCertificate(authority_, {.name = "anna", .uri = identity}, {from, until});
    ASSERT_TRUE(pki::WriteTlsDir(in_.tls_dir, {std::move(pair), authority_.certificate}).ok());
  }

  // The names of the checks that fail.
  std::vector<std::string> Failing() {
    results_ = RunChecks(*SelectChecks({}), in_);
    std::vector<std::string> failing;
    for (const DoctorResult& result : results_) {
      if (result.finding.outcome != Outcome::kFail) continue;
      failing.push_back(absl::StrCat(result.check->group, ".", result.check->name));
      EXPECT_NE(result.finding.fix, "") << failing.back();
    }
    return failing;
  }

  // What a check found at the last Failing(), with its fix.
  std::string Found(const std::string& name) const {
    for (const DoctorResult& result : results_) {
      if (absl::StrCat(result.check->group, ".", result.check->name) == name)
        return absl::StrCat(result.finding.found, "; fix: ", result.finding.fix);
    }
    return "no such check";
  }

  const std::string dir_;
  DoctorInputs in_;
  pki::KeyPair authority_;
  Listener listener_;  // What the controller and the daemons listen on.
  metrics::Registry metrics_;
  std::unique_ptr<daemon::OpsServer> ops_;
  std::vector<DoctorResult> results_;
};

TEST_F(DoctorTest, NothingFailsWhereNothingIsWrong) {
  EXPECT_THAT(Failing(), IsEmpty()) << DoctorText(results_);
  EXPECT_GE(results_.size(), 25u);
  for (const DoctorResult& result : results_) EXPECT_NE(result.finding.found, "");
}

TEST_F(DoctorTest, ATakenPortIsNamedWithItsProcess) {
  const Listener other;
  in_.listen = {"127.0.0.1:0", other.address};
  EXPECT_THAT(Failing(), ElementsAre("net.ports"));
  EXPECT_THAT(Found("net.ports"),
              AllOf(HasSubstr(other.address), HasSubstr(absl::StrCat("(pid ", getpid(), ")")),
                    HasSubstr("--free-ports")));
}

TEST_F(DoctorTest, AClockInThePastIsSeen) {
  in_.tls_dir.clear();  // Its certificate would not be valid yet either.
  in_.now = absl::FromCivil(absl::CivilSecond(1999, 12, 31), absl::UTCTimeZone());
  EXPECT_THAT(Failing(), ElementsAre("host.clock"));
  EXPECT_THAT(Found("host.clock"), AllOf(HasSubstr("1999-12-31"), HasSubstr("chrony")));
}

TEST_F(DoctorTest, AClockThatIsNotTheControllersIsSeenInBothDirections) {
  *in_.answer->daemons.mutable_now() = rpc::ToProto(in_.now + absl::Hours(1));
  EXPECT_THAT(Failing(), ElementsAre("fleet.clock"));
  EXPECT_THAT(Found("fleet.clock"), HasSubstr("1h ahead of this one"));

  *in_.answer->daemons.mutable_now() = rpc::ToProto(in_.now - absl::Minutes(2));
  EXPECT_THAT(Failing(), ElementsAre("fleet.clock"));
  EXPECT_THAT(Found("fleet.clock"), HasSubstr("2m behind this one"));
}

TEST_F(DoctorTest, AFullDiskIsSeen) {
  const integration::Tmpfs disk(dir_ + "/small", "8m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs root";
  in_.data_dir = disk.path();
  EXPECT_THAT(Failing(), ElementsAre("disk.space", "disk.kind")) << "tmpfs keeps nothing, too";
  EXPECT_THAT(Found("disk.space"), AllOf(HasSubstr(disk.path()), HasSubstr("8.0 MiB free")));
  EXPECT_THAT(Found("disk.kind"), HasSubstr("is on tmpfs"));
}

TEST_F(DoctorTest, ADiskTooSmallForTwoCheckpointsIsSeen) {
  const integration::Tmpfs disk(dir_ + "/small", "1m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs root";
  in_.sets = {"checkpoint.dir=" + disk.path() + "/digits"};
  EXPECT_THAT(Failing(), ElementsAre("job.checkpoints"));
  EXPECT_THAT(Found("job.checkpoints"), HasSubstr("1.0 MiB free"));
}

TEST_F(DoctorTest, SharedMemoryWithoutSpaceIsSeen) {
  const integration::Tmpfs disk(dir_ + "/shm", "1m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs needs root";
  in_.shm = disk.path();
  EXPECT_THAT(Failing(), ElementsAre("host.shm"));
  EXPECT_THAT(Found("host.shm"), HasSubstr("--shm-size=1g"));
}

TEST_F(DoctorTest, ALowLimitOfOpenFilesIsSeen) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 300;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_THAT(Failing(), ElementsAre("host.open_files"));
  EXPECT_THAT(Found("host.open_files"), AllOf(HasSubstr("at most 300"), HasSubstr("ulimit -n")));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(DoctorTest, AnOldKernelIsSeen) {
  std::filesystem::create_directories(dir_ + "/proc/sys/kernel");
  WriteText(dir_ + "/proc/sys/kernel/osrelease", "5.4.0-91-generic\n");
  WriteText(dir_ + "/proc/meminfo", "MemAvailable: 8000000 kB\n");
  in_.proc = dir_ + "/proc";
  EXPECT_THAT(Failing(), ElementsAre("host.kernel"));
  EXPECT_THAT(Found("host.kernel"), HasSubstr("5.4.0-91-generic has no openat2()"));
}

TEST_F(DoctorTest, ACgroupWithLittleMemoryIsSeenAlsoAboveTheProcess) {
  WriteText(dir_ + "/proc/sys/kernel/osrelease", "6.1.0\n");
  WriteText(dir_ + "/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n");
  WriteText(dir_ + "/proc/self/cgroup", "0::/pods/one\n");
  WriteText(dir_ + "/cgroup/pods/one/memory.max", "max\n");
  WriteText(dir_ + "/cgroup/pods/memory.max", absl::StrCat(100 << 20, "\n"));
  in_.proc = dir_ + "/proc";
  in_.cgroup = dir_ + "/cgroup";
  EXPECT_THAT(Failing(), ElementsAre("host.memory"));
  EXPECT_THAT(Found("host.memory"), HasSubstr("the cgroup of this process may use 100.0 MiB"));
}

TEST_F(DoctorTest, ADataDirectoryOfAnotherProcessIsSeen) {
  const absl::StatusOr<DirLock> lock = DirLock::Acquire(in_.data_dir);
  ASSERT_TRUE(lock.ok());
  EXPECT_THAT(Failing(), ElementsAre("disk.lock"));
  EXPECT_THAT(Found("disk.lock"), HasSubstr(absl::StrCat("pid ", getpid())));

  in_.local.emplace();  // Not if it is that of the fleet that is checked.
  EXPECT_THAT(Failing(), IsEmpty());
}

TEST_F(DoctorTest, ADamagedStoreIsSeen) {
  WriteText(in_.data_dir + "/controller-0/meta.db", std::string(8192, 'x'));
  EXPECT_THAT(Failing(), ElementsAre("store.file"));
  EXPECT_THAT(Found("store.file"), HasSubstr("controller-0/meta.db is damaged"));
}

TEST_F(DoctorTest, AStoreInARedisThatCannotBeUsedIsSeen) {
  in_.store = "redis+sentinel://127.0.0.1:1/jobs";
  EXPECT_THAT(Failing(), ElementsAre("store.redis"));
  EXPECT_THAT(Found("store.redis"), HasSubstr("no 1 of the 1 Sentinels name the same master"));

  in_.store = "redis://10.0.0.1";
  EXPECT_THAT(Failing(), ElementsAre("store.redis"));
  EXPECT_THAT(Found("store.redis"), HasSubstr("in clear"));
}

TEST_F(DoctorTest, AKeyThatEveryoneMayReadIsSeen) {
  ASSERT_EQ(chmod((in_.tls_dir + "/tls.key").c_str(), 0644), 0);
  EXPECT_THAT(Failing(), ElementsAre("pki.key_mode"));
  EXPECT_THAT(Found("pki.key_mode"),
              AllOf(HasSubstr("has the mode 644"),
                    HasSubstr(absl::StrCat("chmod 600 ", in_.tls_dir, "/tls.key"))));
}

TEST_F(DoctorTest, AnExpiredCertificateIsSeen) {
  IssueCertificate(in_.now - absl::Hours(48), in_.now - absl::Hours(1));
  EXPECT_THAT(Failing(), ElementsAre("pki.expiry"));
  EXPECT_THAT(Found("pki.expiry"), AllOf(HasSubstr("ended on"), HasSubstr("sluice pki issue")));
}

TEST_F(DoctorTest, ACertificateOfAnotherAuthorityIsSeen) {
  const pki::KeyPair other =
      *pki::MakeAuthority({.name = "test", .uri = "spiffe://test"},
                          {in_.now - absl::Hours(1), in_.now + absl::Hours(1)});
  WriteText(in_.tls_dir + "/ca.crt", other.certificate);
  EXPECT_THAT(Failing(), ElementsAre("pki.chain"));
}

TEST_F(DoctorTest, ATlsFolderThatLacksAFileIsSeen) {
  ASSERT_EQ(unlink((in_.tls_dir + "/ca.crt").c_str()), 0);
  EXPECT_THAT(Failing(), ElementsAre("pki.files"));
  EXPECT_THAT(Found("pki.files"), HasSubstr("ca.crt"));
}

TEST_F(DoctorTest, ACertificateOfAnotherProgramIsSeen) {
  IssueCertificate(in_.now - absl::Hours(1), in_.now + absl::Hours(24 * 30), "spiffe://test/web");
  EXPECT_THAT(Failing(), ElementsAre("pki.identity"));
}

TEST_F(DoctorTest, AModelDirectoryThatIsCutShortIsSeen) {
  const std::string model = dir_ + "/model";
  std::filesystem::copy(SLUICE_SOURCE_DIR "/configs/examples/digits", model,
                        std::filesystem::copy_options::recursive);
  const std::string config = *ReadFile(model + "/config.json");
  WriteText(model + "/config.json", config.substr(0, config.size() / 2));
  in_.sets.push_back("model.init.config=" + model);
  EXPECT_THAT(Failing(), ElementsAre("job.model"));
  EXPECT_THAT(Found("job.model"), HasSubstr(model));
}

TEST_F(DoctorTest, ABadRowIsSeenBehindThoseThatASubmitLooksAt) {
  std::string rows;
  for (int i = 0; i < 600; ++i) rows += i == 500 ? "{\"digits\": 7\n" : "{\"digits\": \"1234\"}\n";
  WriteText(dir_ + "/rows.jsonl", rows);
  in_.sets.push_back("data.train.0.path=" + dir_ + "/rows.jsonl");
  EXPECT_THAT(Failing(), ElementsAre("job.data"));
  EXPECT_THAT(Found("job.data"), HasSubstr("rows.jsonl:501"));
}

TEST_F(DoctorTest, AJobFileWithAWrongKeyIsSeen) {
  in_.sets.push_back("trainer.optimizer.learnig_rate=1");
  EXPECT_THAT(Failing(), ElementsAre("job.file"));
  EXPECT_THAT(Found("job.file"), HasSubstr("SLUICE-CONFIG-0003"));
}

TEST_F(DoctorTest, APolicyThatCannotBeReadIsSeen) {
  WriteText(dir_ + "/policy.yaml", "caps: {queue.groups_per_step: many}\n");
  in_.policy_file = dir_ + "/policy.yaml";
  EXPECT_THAT(Failing(), ElementsAre("policy.file"));
  EXPECT_THAT(Found("policy.file"), HasSubstr("policy.yaml:1"));

  in_.policy_file = dir_ + "/no-such.yaml";
  EXPECT_THAT(Failing(), ElementsAre("policy.file"));
}

TEST_F(DoctorTest, AProgramOfAnotherVersionIsSeen) {
  WriteProgram("sluice-trainer", "echo 0.0.9");
  EXPECT_THAT(Failing(), ElementsAre("build.programs"));
  EXPECT_THAT(Found("build.programs"), HasSubstr("sluice-trainer is of version 0.0.9"));
}

TEST_F(DoctorTest, AProgramThatCannotBeLoadedIsSeen) {
  WriteProgram("sluice-trainer", "exit 127");
  EXPECT_THAT(Failing(), ElementsAre("build.programs"));
  EXPECT_THAT(Found("build.programs"), AllOf(HasSubstr("exit code 127"), HasSubstr("ldd")));
}

TEST_F(DoctorTest, ADaemonOfAnotherVersionIsSeen) {
  in_.answer->daemons.mutable_daemons(1)->set_build("0.9.4");
  EXPECT_THAT(Failing(), ElementsAre("fleet.versions"));
  EXPECT_THAT(Found("fleet.versions"), HasSubstr("rollout-0 0.9.4"));
}

TEST_F(DoctorTest, TheDaemonsOfEachPoolAreCounted) {
  admin::v1::Daemon& daemon = *in_.answer->daemons.mutable_daemons(2);
  (*daemon.mutable_labels())["pool"] = "gpu";
  const auto results = RunChecks(*SelectChecks({"fleet.daemons"}), in_);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results[0].finding.found,
              AllOf(HasSubstr(" in pool default, "), HasSubstr("1 in pool gpu")));
}

TEST_F(DoctorTest, ALostDaemonIsAWarningAndAFailureIfAJobNamesIt) {
  admin::v1::Daemon& daemon = *in_.answer->daemons.add_daemons();
  daemon = in_.answer->daemons.daemons(2);
  daemon.set_daemon("reward-1");
  daemon.set_lost(true);
  daemon.mutable_silent()->set_seconds(42);
  EXPECT_THAT(Failing(), IsEmpty());
  EXPECT_THAT(Found("fleet.daemons"), HasSubstr("lost: reward-1 (pool default, silent for 42 s)"));

  daemon.add_jobs("some-job");
  EXPECT_THAT(Failing(), ElementsAre("fleet.daemons"));
  EXPECT_THAT(Found("fleet.daemons"), HasSubstr("reward-1 (pool default, silent for 42 s)"));
}

TEST_F(DoctorTest, ADaemonThatEndedInAnOrderlyWayIsAFailureOnlyIfAJobNamesIt) {
  admin::v1::Daemon& daemon = *in_.answer->daemons.add_daemons();
  daemon = in_.answer->daemons.daemons(0);
  daemon.set_daemon("queue-1");
  daemon.set_lost(true);
  daemon.set_left(true);
  EXPECT_THAT(Failing(), IsEmpty());
  EXPECT_THAT(Found("fleet.daemons"), testing::StartsWith("4 daemons"));

  daemon.add_jobs("some-job");
  EXPECT_THAT(Failing(), ElementsAre("fleet.daemons"));
}

TEST_F(DoctorTest, AControllerThatDoesNotAnswerIsSeen) {
  in_.answer = absl::UnavailableError("connection refused");
  EXPECT_THAT(Failing(), ElementsAre("fleet.controller"));
  EXPECT_THAT(Found("fleet.controller"), HasSubstr(in_.server));
}

TEST_F(DoctorTest, APortOfADaemonThatIsClosedIsAWarning) {
  std::string closed;
  {
    const Listener gone;
    closed = gone.address;
  }
  for (admin::v1::Daemon& daemon : *in_.answer->daemons.mutable_daemons()) {
    (*daemon.mutable_addresses())["grpc"] = closed;
    (*daemon.mutable_addresses())["ops"] = closed;
  }
  EXPECT_THAT(Failing(), IsEmpty());
  EXPECT_THAT(Found("fleet.peers"), HasSubstr(absl::StrCat("queue-0 at ", closed)));
  EXPECT_THAT(Found("metrics.scrape"), HasSubstr(closed));
}

TEST_F(DoctorTest, ChecksAreChosenByGroupOrName) {
  const auto names = [](const std::vector<std::string>& chosen) {
    std::vector<std::string> selected;
    const std::vector<const DoctorCheck*> checks = *SelectChecks(chosen);
    for (const DoctorCheck* check : checks)
      selected.push_back(absl::StrCat(check->group, ".", check->name));
    return absl::StrJoin(selected, " ");
  };
  EXPECT_EQ(names({"net"}), "net.ports net.names");
  EXPECT_EQ(names({"pki.expiry", "disk.space"}), "disk.space pki.expiry");
  EXPECT_THAT(SelectChecks({"dsk.space"}).status().message(),
              HasSubstr("did you mean disk.space?"));
}

TEST(DoctorOutput, NamesEachCheckWithItsFix) {
  static const DoctorCheck one{"disk", "space", "", nullptr}, two{"net", "ports", "", nullptr};
  const std::vector<DoctorResult> results = {{&one, Pass("90 GiB free")},
                                             {&two, Fail("7400 is taken", "end it")}};
  EXPECT_EQ(DoctorText(results),
            "OK    disk.space  90 GiB free\n"
            "FAIL  net.ports   7400 is taken\n"
            "                  fix: end it\n"
            "1 OK, 0 WARN, 1 FAIL, 0 not checked\n");
  EXPECT_EQ(DoctorJson(results).dump(),
            R"({"checks":[{"check":"disk.space","outcome":"OK","found":"90 GiB free","fix":""},)"
            R"({"check":"net.ports","outcome":"FAIL","found":"7400 is taken","fix":"end it"}],)"
            R"("ok":1,"warn":0,"fail":1,"skipped":0})");
  EXPECT_TRUE(sluice::cli::HasFailure(results));
}

}  // namespace
}  // namespace sluice::cli
