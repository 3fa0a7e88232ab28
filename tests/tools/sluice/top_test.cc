#include "tools/sluice/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/daemon_text.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

job::v1::JobStatus& AddJob(job::v1::ListResponse* list, const std::string& name,
                           job::v1::JobState state, int64_t step) {
  job::v1::JobStatus& job = *list->add_jobs();
  job.set_name(name);
  job.set_job("id-of-" + name);
  job.set_state(state);
  job.set_step(step);
  return job;
}

TEST(Top, ShowsRunningJobsFirstWithTheirSpeed) {
  job::v1::ListResponse list;
  AddJob(&list, "new", job::v1::JOB_STATE_SUCCEEDED, 9);
  AddJob(&list, "old", job::v1::JOB_STATE_RUNNING, 10).add_daemons("queue-0");
  StepRates rates;
  rates.Add(list, absl::Seconds(0));
  list.mutable_jobs(1)->set_step(13);
  rates.Add(list, absl::Seconds(6));

  EXPECT_EQ(TopJobsText(list, rates, 10),
            "2 jobs: 1 RUNNING, 1 SUCCEEDED\n"
            "NAME  STATE      STEP  STEPS/MIN  DAEMONS  CONDITIONS  MESSAGE\n"
            "old   RUNNING    13    30.0       1        -           \n"
            "new   SUCCEEDED  9     -          0        -           \n");
  EXPECT_THAT(TopJobsText(list, rates, 1), HasSubstr("and 1 more: `sluice job list`\n"));
  EXPECT_THAT(TopJobsText(list, rates, 1), Not(HasSubstr("\nnew")));
}

TEST(Top, ASpeedIsThatOfTheLastHalfMinute) {
  job::v1::ListResponse list;
  job::v1::JobStatus& job = AddJob(&list, "a", job::v1::JOB_STATE_RUNNING, 0);
  StepRates rates;
  EXPECT_LT(rates.PerMinute("id-of-a"), 0);
  for (int second = 0; second <= 120; ++second) {
    job.set_step(second < 60 ? second : 60);  // One step a second, then none.
    rates.Add(list, absl::Seconds(second));
    if (second == 59) {
      EXPECT_NEAR(rates.PerMinute("id-of-a"), 60, 1e-6);
    }
  }
  EXPECT_NEAR(rates.PerMinute("id-of-a"), 0, 1e-6);

  job.set_step(40);  // Back to a checkpoint.
  rates.Add(list, absl::Seconds(121));
  EXPECT_LT(rates.PerMinute("id-of-a"), 0);
}

TEST(Top, ShowsLostDaemonsFirstThoseThatLeftLastAndTheNamesOfJobs) {
  job::v1::ListResponse list;
  AddJob(&list, "digits", job::v1::JOB_STATE_RUNNING, 0);
  admin::v1::DaemonsResponse daemons;
  admin::v1::Daemon& working = *daemons.add_daemons();
  working.set_daemon("queue-0");
  working.set_role(rpc::v1::ROLE_QUEUE);
  working.add_jobs("id-of-digits");
  (*working.mutable_load())["slots"] = 3;
  (*working.mutable_addresses())["grpc"] = "127.0.0.1:7410";
  working.set_build("0.1.0");
  admin::v1::Daemon& lost = *daemons.add_daemons();
  lost.set_daemon("trainer-0");
  lost.set_role(rpc::v1::ROLE_TRAINER);
  lost.set_lost(true);
  lost.mutable_silent()->set_seconds(64);
  (*lost.mutable_labels())["pool"] = "gpu";
  admin::v1::Daemon& left = *daemons.add_daemons();
  left = lost;
  left.set_daemon("queue-1");
  left.set_role(rpc::v1::ROLE_QUEUE);
  left.set_left(true);

  EXPECT_EQ(TopDaemonsText(daemons, list, 10),
            "3 daemons: 1 left, 1 lost, 1 working\n"
            "DAEMON     ROLE     POOL     STATE    HEARD      ADDRESS         BUILD  JOBS    LOAD\n"
            "trainer-0  trainer  gpu      lost     1m04s ago  -                      -       \n"
            "queue-0    queue    default  working  0s ago     127.0.0.1:7410  0.1.0  digits  slots "
            "3\n"
            "queue-1    queue    gpu      left     1m04s ago  -                      -       \n");
}

TEST(DaemonListText, ShowsThePoolAndInWideAlsoTheRest) {
  admin::v1::DaemonsResponse daemons;
  admin::v1::Daemon& daemon = *daemons.add_daemons();
  daemon.set_daemon("trainer-0");
  daemon.set_role(rpc::v1::ROLE_TRAINER);
  daemon.set_incarnation(3);
  daemon.set_build("0.1.0");
  daemon.add_jobs("id-of-digits");
  daemon.add_jobs("id-of-a-secret");
  daemon.mutable_silent()->set_seconds(64);
  (*daemon.mutable_addresses())["grpc"] = "h:1";
  (*daemon.mutable_addresses())["ops"] = "h:2";
  (*daemon.mutable_labels())["zone"] = "a";
  (*daemon.mutable_labels())["pool"] = "gpu";

  const std::map<std::string, std::string> names = {{"id-of-digits", "digits"}};
  EXPECT_EQ(DaemonListText(daemons, names, /*wide=*/false),
            "DAEMON     ROLE     POOL  STATE    JOBS                           HEARD     ADDRESS\n"
            "trainer-0  trainer  gpu   working  digits, (another submitter's)  1m4s ago  h:1\n");
  EXPECT_EQ(DaemonListText(daemons, {}, /*wide=*/true),
            "DAEMON     ROLE     POOL  STATE    JOBS                                          HEARD"
            "     ADDRESS  OPS  INCARNATION  BUILD  LABELS\n"
            "trainer-0  trainer  gpu   working  (another submitter's), (another submitter's)  1m4s"
            " ago  h:1      h:2  3            0.1.0  pool=gpu,zone=a\n");
}

}  // namespace
}  // namespace sluice::cli
