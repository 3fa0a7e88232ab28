#include "tools/sluice/job_text.h"

#include <gtest/gtest.h>

#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {
namespace {

job::v1::JobStatus Digits() {
  job::v1::JobStatus job;
  job.set_job("5e3a90c1000000000000000000000000");
  job.set_name("digits");
  job.set_state(job::v1::JOB_STATE_RECOVERING);
  job.add_conditions("Degraded");
  job.mutable_created()->set_seconds(1'800'000'000);
  job.set_step(61);
  job.mutable_version()->set_incarnation(2);
  job.mutable_version()->set_number(61);
  job.set_code("SLUICE-CTL-0011");
  job.set_message("queue queue-0 is lost");
  job.add_daemons("queue-0");
  job.add_daemons("trainer-0");
  job.set_owner("anna");
  job.mutable_spec()->set_kind("rl");
  job.mutable_spec()->mutable_model()->set_path("/models/tiny");
  job.mutable_spec()->mutable_checkpoint()->set_dir("/checkpoints/digits");
  job::v1::DataSource& source = *job.mutable_spec()->mutable_data()->add_train();
  source.set_name("digits");
  source.set_path("/data/train.jsonl");
  return job;
}

job::v1::ListResponse List() {
  job::v1::ListResponse list;
  *list.add_jobs() = Digits();
  job::v1::JobStatus& other = *list.add_jobs();
  other.set_name("gsm");
  other.set_job("00000000000000000000000000000001");
  other.set_state(job::v1::JOB_STATE_WAITING);
  other.mutable_since()->set_seconds(1'800'000'060);
  other.set_message("waits for a queue");
  other.set_starts_when("it starts when they have registered");
  return list;
}

TEST(JobText, ListsJobsInEachFormat) {
  const absl::TimeZone utc = absl::UTCTimeZone();
  EXPECT_EQ(JobListText(List(), "table", utc),
            "NAME    STATE       STEP  CREATED              JOB                               "
            "MESSAGE\n"
            "digits  RECOVERING  61    2027-01-15 08:00:00  5e3a90c1000000000000000000000000  "
            "queue queue-0 is lost\n"
            "gsm     WAITING     0     1970-01-01 00:00:00  00000000000000000000000000000001  "
            "waits for a queue since 2027-01-15 08:01:00; it starts when they have registered\n");
  EXPECT_EQ(
      JobListText(List(), "wide", utc),
      "NAME    STATE       STEP  CREATED              JOB                               OWNER "
      " VERSION  CONDITIONS  DAEMONS             MESSAGE\n"
      "digits  RECOVERING  61    2027-01-15 08:00:00  5e3a90c1000000000000000000000000  anna  "
      " 2.61     Degraded    queue-0, trainer-0  queue queue-0 is lost\n"
      "gsm     WAITING     0     1970-01-01 00:00:00  00000000000000000000000000000001  -     "
      " 0.0      -           -                   waits for a queue since 2027-01-15 08:01:00; it "
      "starts when they have registered\n");
  EXPECT_EQ(JobListText(List(), "name", utc), "digits\ngsm\n");
}

TEST(JobText, DescribesAJobInEachFormat) {
  const absl::TimeZone utc = absl::UTCTimeZone();
  const std::string table =
      "name         digits\n"
      "job          5e3a90c1000000000000000000000000\n"
      "state        RECOVERING\n"
      "message      SLUICE-CTL-0011: queue queue-0 is lost\n"
      "conditions   Degraded\n"
      "created      2027-01-15 08:00:00\n"
      "step         61\n"
      "version      2.61\n"
      "daemons      queue-0, trainer-0\n";
  EXPECT_EQ(JobText(Digits(), "wide", utc), table +
                                                "owner        anna\n"
                                                "incarnation  0\n"
                                                "kind         rl\n"
                                                "model        /models/tiny\n"
                                                "checkpoints  /checkpoints/digits\n"
                                                "data         digits: /data/train.jsonl\n");
  EXPECT_EQ(JobText(Digits(), "name", utc), "digits\n");
}

TEST(JobText, SaysSinceWhenAJobWaitsAndWhatWouldLetItStart) {
  EXPECT_EQ(JobText(List().jobs(1), "table", absl::UTCTimeZone()),
            "name        gsm\n"
            "job         00000000000000000000000000000001\n"
            "state       WAITING since 2027-01-15 08:01:00\n"
            "message     waits for a queue\n"
            "starts      it starts when they have registered\n"
            "conditions  none\n"
            "created     1970-01-01 00:00:00\n"
            "step        0\n"
            "version     0.0\n"
            "daemons     none\n");
}

TEST(JobText, ListsEventsInEachFormat) {
  common::v1::Event event;
  event.set_seq(7);
  event.mutable_at()->set_seconds(1'800'000'000);
  event.set_severity(common::v1::SEVERITY_WARNING);
  event.set_role(rpc::v1::ROLE_QUEUE);
  event.set_incarnation(2);
  event.set_daemon("queue-0");
  event.set_code("daemon_lost");
  event.set_message("silent");
  event.set_count(3);
  const absl::TimeZone utc = absl::UTCTimeZone();
  EXPECT_EQ(EventsText({event}, "table", utc),
            "SEQ  TIME                 SEVERITY  DAEMON   CODE         MESSAGE\n"
            "7    2027-01-15 08:00:00  WARNING   queue-0  daemon_lost  silent (3 times)\n");
  EXPECT_EQ(
      EventsText({event}, "wide", utc),
      "SEQ  TIME                 SEVERITY  DAEMON   ROLE   INCARNATION  CODE         MESSAGE\n"
      "7    2027-01-15 08:00:00  WARNING   queue-0  QUEUE  2            daemon_lost  silent "
      "(3 times)\n");
}

}  // namespace
}  // namespace sluice::cli
