// All certificates of a fleet, and the authority that signs them, are replaced while a job runs.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/client.h"
#include "common/rpc/credentials.h"
#include "sluice/admin/v1/admin.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {

class RotationTest : public testing::Test {
 protected:
  // Gives each daemon and the operator a new certificate of `authority`. They trust `trusted`.
  void Issue(const pki::KeyPair& authority, const std::string& trusted) {
    const absl::Time now = absl::Now();
    for (const std::string& name : cluster_.ids()) IssueTo(name, authority, trusted, now);
    IssueTo(cli::kFleetOperator, authority, trusted, now);
  }
  void IssueTo(const std::string& name, const pki::KeyPair& authority, const std::string& trusted,
               absl::Time now) {
    const std::string dir = cli::FleetTlsDir(cluster_.dir(), name);
    const auto old = pki::ParseCertificate(*ReadFile(dir + "/" + pki::kCertificateFile));
    ASSERT_EQ(old.status(), absl::OkStatus());
    auto pair = pki::IssueCertificate(authority, old->subject,
                                      {now - absl::Minutes(1), now + absl::Minutes(30)});
    ASSERT_EQ(pair.status(), absl::OkStatus());
    ASSERT_EQ(pki::WriteTlsDir(dir, {*std::move(pair), trusted}), absl::OkStatus());
  }

  // Lets the job go on until all daemons have read their files again, and some time more.
  void AwaitReread() {
    const absl::Time until = absl::Now() + 1.2 * rpc::Credentials::kRereadPeriod;
    while (absl::Now() < until) ASSERT_EQ(job_->AwaitStep(job_->steps(), kLong), absl::OkStatus());
  }

  Cluster cluster_{{.tls = true}};
  std::unique_ptr<Job> job_;
};

TEST_F(RotationTest, NewCertificatesOfANewAuthorityFailNoCallAndAreUsed) {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  auto job = SubmitDigits(&cluster_, /*steps=*/1'000'000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  job_ = *std::move(job);
  ASSERT_EQ(job_->AwaitStep(1, kLong), absl::OkStatus());

  // An operator who calls all the time, each time over a new connection.
  std::atomic<bool> done = false;
  std::atomic<int> calls = 0, failed = 0;
  std::thread caller([&] {
    const std::string dir = cli::FleetTlsDir(cluster_.dir(), cli::kFleetOperator);
    for (; !done; ++calls) {
      const auto credentials = rpc::Credentials::Load(dir);
      admin::v1::DaemonsResponse daemons;
      absl::Status status = credentials.status();
      if (status.ok()) {
        const auto channel = rpc::Connect(cluster_.address("controller-0"),
                                          {rpc::Role::kController}, {.credentials = *credentials});
        status = rpc::Call(**channel, admin::v1::DaemonsRequest(), &daemons);
      }
      if (status.ok()) continue;
      ++failed;
      ADD_FAILURE() << status;
    }
  });

  const std::string ca = cluster_.dir() + "/ca/";
  const pki::KeyPair former{*ReadFile(ca + pki::kAuthorityFile),
                            Secret(*ReadFile(ca + pki::kAuthorityKeyFile))};
  const absl::Time now = absl::Now();
  const pki::KeyPair next = *pki::MakeAuthority({.name = "next", .uri = "spiffe://sluice"},
                                                {now - absl::Hours(1), now + absl::Hours(1)});
  const std::string both = absl::StrCat(former.certificate, next.certificate);
  Issue(former, both);  // First all learn to trust the next authority,
  AwaitReread();
  Issue(next, both);  // then all get certificates of it,
  AwaitReread();
  Issue(next, next.certificate);  // and last nobody trusts the former one.
  AwaitReread();
  done = true;
  caller.join();

  EXPECT_EQ(failed, 0) << "of " << calls;
  EXPECT_GT(calls, 0);
  for (const common::v1::Event& event : job_->events())
    EXPECT_NE(event.code(), "daemon_lost") << event.message();

  // All connections of a daemon that is started again are new.
  ASSERT_EQ(cluster_.Kill("queue-0"), absl::OkStatus());
  ASSERT_EQ(cluster_.Start("queue-0"), absl::OkStatus());
  EXPECT_EQ(job_->AwaitStepsSince(absl::Now(), 3, kLong), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::integration
