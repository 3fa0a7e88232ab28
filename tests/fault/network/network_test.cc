// Five hosts, each a network namespace: the controller, queue and reward, the trainer, and two
// rollouts. The daemons have certificates of `sluice pki` and trust nothing else. The second
// rollout's network is cut, delayed and narrowed while a job runs. The times that things took are
// printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/client.h"
#include "tests/common/daemon/http.h"
#include "tests/fault/network/hosts.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::fault {
namespace {

using integration::CheckLedgerBalances;
using integration::Cluster;
using integration::ClusterOptions;
using integration::Job;
using integration::kLong;
using integration::SubmitDigits;
using integration::Text;
using testing::HasSubstr;

constexpr char kFar[] = "rollout-1";  // The daemon whose network is bad.
constexpr int kEndless = 1'000'000;   // Steps.
// How long a fault lasts. Connections that live through it have backed off for many seconds by
// then, which is what makes a quick return hard.
constexpr absl::Duration kFault = absl::Seconds(20);

// The hosts of this process, or why there are none. Made once, before gRPC starts threads.
const absl::StatusOr<std::unique_ptr<Hosts>>& TheHosts() {
  static const auto* const hosts = new absl::StatusOr<std::unique_ptr<Hosts>>(
      Hosts::Make({"controller", "queue", "trainer", "rollout", "far"}));
  return *hosts;
}

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    const bool required = getenv("SLUICE_REQUIRE_FAULTS") != nullptr;
    if (TheHosts().ok()) return;
    if (required) FAIL() << TheHosts().status();
    GTEST_SKIP() << "this machine has no hosts to test with: " << TheHosts().status();
  }
  void TearDown() override {
    if (!TheHosts().ok()) return;
    hosts().cable().SetQuality({}, {});
    EXPECT_EQ(hosts().SetLink("far", true), absl::OkStatus());
  }

  static Hosts& hosts() { return **TheHosts(); }

  void StartFleet() {
    ClusterOptions options{.rollouts = 2, .tls = true};
    for (const auto& [daemon, host] :
         std::map<std::string, std::string>{{"controller-0", "controller"},
                                            {"queue-0", "queue"},
                                            {"reward-0", "queue"},
                                            {"trainer-0", "trainer"},
                                            {"rollout-0", "rollout"},
                                            {kFar, "far"}})
      options.placements[daemon] = {hosts().address(host), Hosts::NetworkPath(host)};
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
  }

  void StartJob(int steps, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"resources.rollout.min=2", "resources.rollout.max=2"});
    auto job = SubmitDigits(cluster_.get(), steps, std::move(more));
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
  }

  // How many tokens a rollout has sampled. It is asked over the network.
  int64_t TokensOf(const std::string& rollout) const {
    const std::string text = daemon::HttpGet(cluster_->ops(rollout), "/metrics");
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      double tokens = 0;
      if (absl::StartsWith(line, "sluice_rollout_tokens_generated_total{") &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &tokens))
        return static_cast<int64_t>(tokens);
    }
    return 0;
  }

  // Goes on, step by step of the job, until `done`.
  void AwaitWhileTheJobGoesOn(const char* what, const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + kLong;
    while (!done()) {
      ASSERT_LT(absl::Now(), deadline) << what;
      ASSERT_EQ(job_->AwaitStep(job_->steps(), kLong), absl::OkStatus()) << what;
    }
  }

  void AwaitTokensOfBoth() {
    AwaitWhileTheJobGoesOn("both rollouts sample",
                           [&] { return TokensOf("rollout-0") > 0 && TokensOf(kFar) > 0; });
  }

  // Asks `sluice why` until it names the daemon.
  void AwaitWhyNames(const std::string& daemon) {
    const absl::Time deadline = absl::Now() + kLong;
    std::string said;
    while (!absl::StrContains(said, daemon)) {
      ASSERT_LT(absl::Now(), deadline) << said;
      const auto why = cluster_->Sluice({"why", job_->id()});
      ASSERT_EQ(why.status(), absl::OkStatus());
      said = why->out;
    }
  }

  bool IsLost(const std::string& daemon) const {
    for (const common::v1::Event& event : job_->events()) {
      if (event.code() == "daemon_lost" && event.daemon() == daemon) return true;
    }
    return false;
  }

  void ExpectEndsWell(job::v1::JobState state) {
    const auto end = job_->AwaitEnd(kLong);
    ASSERT_EQ(end.status(), absl::OkStatus());
    EXPECT_EQ(end->state(), state) << Text(*end);
    EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  }

  void CancelJob() {
    const auto said = cluster_->Sluice({"job", "cancel", job_->id()});
    ASSERT_EQ(said.status(), absl::OkStatus());
    ASSERT_EQ(said->exit, 0) << said->err;
    ExpectEndsWell(job::v1::JOB_STATE_CANCELLED);
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Job> job_;
};

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

TEST_F(NetworkTest, AJobOverFiveHostsSucceeds) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  ASSERT_NO_FATAL_FAILURE(StartJob(/*steps=*/200));
  ASSERT_NO_FATAL_FAILURE(AwaitTokensOfBoth());
  ExpectEndsWell(job::v1::JOB_STATE_SUCCEEDED);
}

constexpr LineQuality kGood, kDead = {.passes = false};

// A way to part the far rollout from all others.
struct Parting {
  const char* name;
  bool link_down;
  LineQuality from_far, to_far;
};

class PartedNetworkTest : public NetworkTest, public testing::WithParamInterface<Parting> {
 protected:
  static void Part() {
    if (GetParam().link_down) {
      ASSERT_EQ(hosts().SetLink("far", false), absl::OkStatus());
    } else {
      hosts().cable().SetQuality(GetParam().from_far, GetParam().to_far);
    }
  }
  static void Heal() {
    hosts().cable().SetQuality({}, {});
    ASSERT_EQ(hosts().SetLink("far", true), absl::OkStatus());
  }
};

TEST_P(PartedNetworkTest, TheSilentRolloutIsNamedTheJobGoesOnAndTheRolloutWorksAgainAfterwards) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  ASSERT_NO_FATAL_FAILURE(StartJob(kEndless));
  ASSERT_NO_FATAL_FAILURE(AwaitTokensOfBoth());

  ASSERT_NO_FATAL_FAILURE(Part());
  const absl::Time parted = absl::Now();
  ASSERT_NO_FATAL_FAILURE(AwaitWhyNames(kFar));
  const double named = SecondsSince(parted);
  ASSERT_EQ(job_->AwaitEvent("daemon_lost", kLong), absl::OkStatus());
  ASSERT_TRUE(IsLost(kFar));
  const double lost = SecondsSince(parted);

  const int64_t steps = job_->steps();
  ASSERT_EQ(job_->AwaitStepsSince(absl::Now(), 1, kLong), absl::OkStatus());
  const double moving = SecondsSince(parted);
  ASSERT_NO_FATAL_FAILURE(
      AwaitWhileTheJobGoesOn("the fault lasts", [&] { return absl::Now() - parted > kFault; }));
  const int64_t steps_meanwhile = job_->steps() - steps;

  ASSERT_NO_FATAL_FAILURE(Heal());
  const absl::Time healed = absl::Now();
  // It has long sampled all that it had. Only new work makes the number grow.
  const int64_t before = TokensOf(kFar);
  ASSERT_NO_FATAL_FAILURE(AwaitWhileTheJobGoesOn("the rollout has work again",
                                                 [&] { return TokensOf(kFar) > before; }));
  const double resumed = SecondsSince(healed);
  std::printf(
      "%s: named by why after %.1f s, lost after %.1f s, next step after %.1f s, %lld steps "
      "without it; works again %.1f s after the heal\n",
      GetParam().name, named, lost, moving, static_cast<long long>(steps_meanwhile), resumed);

  EXPECT_GT(steps_meanwhile, 0);
  ASSERT_NO_FATAL_FAILURE(CancelJob());
}

INSTANTIATE_TEST_SUITE_P(ByA, PartedNetworkTest,
                         testing::Values(Parting{"LinkDown", true, kGood, kGood},
                                         Parting{"BlackHole", false, kDead, kDead},
                                         Parting{"LossOfAllItSends", false, kDead, kGood},
                                         Parting{"LossOfAllItShouldGet", false, kGood, kDead}),
                         [](const auto& info) { return std::string(info.param.name); });

// The far rollout may be the parent of the other one, or its child, as the job's id has it.
class ParentLossTest : public NetworkTest {
 protected:
  static double WeightBytesOf(const Cluster& cluster, const std::string& rollout,
                              const std::string& kind) {
    const std::string text = daemon::HttpGet(cluster.ops(rollout), "/metrics");
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      double bytes = 0;
      if (absl::StartsWith(line, "sluice_weights_bytes_total{") &&
          absl::StrContains(line, "\"" + kind + "\"") &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &bytes))
        return bytes;
    }
    return 0;
  }
};

TEST_F(ParentLossTest, VersionsGoOnInAChainWhoseFarRolloutIsCutOffAndThenThroughItAgain) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  ASSERT_NO_FATAL_FAILURE(
      StartJob(kEndless, {"weights.fan_out=chain", "weights.shared_memory=false"}));
  ASSERT_NO_FATAL_FAILURE(AwaitTokensOfBoth());
  const auto relayed = [&] {
    return WeightBytesOf(*cluster_, "rollout-0", "relayed") +
           WeightBytesOf(*cluster_, kFar, "relayed");
  };
  ASSERT_NO_FATAL_FAILURE(
      AwaitWhileTheJobGoesOn("one passes versions on", [&] { return relayed() > 0; }));

  hosts().cable().SetQuality(kDead, kDead);
  ASSERT_EQ(job_->AwaitEvent("daemon_lost", kLong), absl::OkStatus());
  const double fetched = WeightBytesOf(*cluster_, "rollout-0", "fetched");
  ASSERT_NO_FATAL_FAILURE(AwaitWhileTheJobGoesOn("the other one has new versions", [&] {
    return WeightBytesOf(*cluster_, "rollout-0", "fetched") > fetched;
  }));

  hosts().cable().SetQuality({}, {});
  const double before = relayed();
  ASSERT_NO_FATAL_FAILURE(
      AwaitWhileTheJobGoesOn("one passes versions on again", [&] { return relayed() > before; }));
  ASSERT_NO_FATAL_FAILURE(CancelJob());
}

// A slow network between the far rollout and all others.
struct Slowness {
  const char* name;
  LineQuality quality;  // Each way.
};

class SlowNetworkTest : public NetworkTest, public testing::WithParamInterface<Slowness> {};

TEST_P(SlowNetworkTest, TheRolloutConnectsAndSamplesAndIsNotGivenUp) {
  hosts().cable().SetQuality(GetParam().quality, GetParam().quality);
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  const absl::Time began = absl::Now();
  // Large steps, because the digits job otherwise publishes up to a hundred versions a second, and
  // each would be gone before a rollout at this distance has fetched it.
  ASSERT_NO_FATAL_FAILURE(
      StartJob(kEndless, {"queue.groups_per_step=32", "rollout.group.size=8", "rollout.group.min=8",
                          "queue.max_staleness=100", "weights.retain_versions=100"}));
  ASSERT_NO_FATAL_FAILURE(AwaitTokensOfBoth());
  const double both = SecondsSince(began);

  const int64_t steps = job_->steps(), tokens = TokensOf(kFar);
  const absl::Time start = absl::Now();
  ASSERT_EQ(job_->AwaitStep(steps + 20, kLong), absl::OkStatus());
  const double seconds = SecondsSince(start);
  std::printf("%s: both rollouts sample after %.1f s; %.1f steps/s; %.0f tokens/s of the far one\n",
              GetParam().name, both, static_cast<double>(job_->steps() - steps) / seconds,
              static_cast<double>(TokensOf(kFar) - tokens) / seconds);

  EXPECT_GT(TokensOf(kFar), tokens);
  EXPECT_FALSE(IsLost(kFar));
  ASSERT_NO_FATAL_FAILURE(CancelJob());
}

INSTANTIATE_TEST_SUITE_P(
    With, SlowNetworkTest,
    testing::Values(Slowness{"NoFault", kGood},
                    Slowness{"ADelayOf200Ms", {.delay = absl::Milliseconds(200)}},
                    Slowness{"OneMegabyteASecond", {.bytes_per_second = 1'000'000}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::fault
