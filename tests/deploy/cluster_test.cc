// The overlay `dev` on a real cluster: the one of KUBECONFIG. The namespace `sluice` is made, and
// removed at the end. The images must be where the nodes find them:
//   SLUICE_TEST_REGISTRY=registry.example/team   names are then registry.example/team/sluice-queue
//   SLUICE_TEST_TAG=dev

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/deploy/command.h"
#include "tests/deploy/manifest.h"
#include "tests/integration/harness/process.h"

namespace sluice::deploy {
namespace {

constexpr absl::Duration kReady = absl::Seconds(60);
// A pod may use its whole grace period before the next one starts; a trainer has the longest.
constexpr absl::Duration kReplaced = absl::Minutes(12);

std::string Variable(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Variable("KUBECONFIG", "").empty()) GTEST_SKIP() << "KUBECONFIG names no cluster to run on";
    ASSERT_TRUE(HasKubectl()) << "there is a KUBECONFIG, but no kubectl";
    // A fleet that is there already is somebody's.
    const absl::StatusOr<std::string> there =
        Kubectl({"get", "namespace", "sluice", "--ignore-not-found", "-o", "name"});
    ASSERT_TRUE(there.ok()) << there.status();
    if (!there->empty()) GTEST_SKIP() << "the cluster has a namespace sluice already; remove it";
    dir_ = MakeTempDir().value();
    ours_ = true;
  }

  void TearDown() override {
    if (!ours_) return;
    if (HasFailure()) {
      for (const char* command : {"get pods -o wide", "get events", "describe pods"})
        std::cout << Fleet(absl::StrSplit(command, ' ')).value_or("") << std::endl;
    }
    forward_.reset();
    EXPECT_TRUE(Kubectl({"delete", "namespace", "sluice"}).ok());
  }

  static absl::StatusOr<std::string> Kubectl(std::vector<std::string> args,
                                             absl::Duration timeout = absl::Minutes(15)) {
    args.insert(args.begin(), "kubectl");
    return RunCommand(args, {}, timeout);
  }
  static absl::StatusOr<std::string> Fleet(std::vector<std::string> args) {
    args.insert(args.begin(), {"-n", "sluice"});
    return Kubectl(std::move(args));
  }

  // Applies the Secrets and the overlay, whose job is made to last until the test has ended.
  absl::Status Apply() {
    SLUICE_ASSIGN_OR_RETURN(
        const std::string secrets,
        RunCommand({std::string(SLUICE_SOURCE_DIR) + "/deploy/k8s/make-secrets.sh", dir_ + "/ca"},
                   {{"SLUICE_CLI", std::string(SLUICE_BIN_DIR) + "/sluice"}}));
    SLUICE_ASSIGN_OR_RETURN(std::string objects, Render("dev"));
    const std::string registry = Variable("SLUICE_TEST_REGISTRY", "");
    constexpr char kArgument[] = "- --set=checkpoint.dir=/checkpoints\n";
    SLUICE_CHECK(absl::StrContains(objects, kArgument));
    objects = absl::StrReplaceAll(
        objects, {{"image: sluice-",
                   absl::StrCat("image: ", registry, registry.empty() ? "" : "/", "sluice-")},
                  {":dev\n", absl::StrCat(":", Variable("SLUICE_TEST_TAG", "dev"), "\n")},
                  {kArgument, absl::StrCat(kArgument,
                                           "        - --set=limits.wall=2h\n"
                                           "        - --set=limits.max_steps=40000\n"
                                           "        - --set=limits.restarts_per_hour=100\n")}});
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/secrets.yaml", secrets));
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/objects.yaml", objects));
    for (const char* file : {"/secrets.yaml", "/objects.yaml"})
      SLUICE_RETURN_IF_ERROR(Kubectl({"apply", "-f", dir_ + file}).status());
    return absl::OkStatus();
  }

  static absl::Status AwaitRollout(absl::Duration timeout) {
    for (const char* object : {"statefulset/controller", "statefulset/queue", "deployment/rollout",
                               "deployment/reward", "statefulset/trainer"})
      SLUICE_RETURN_IF_ERROR(Fleet({"rollout", "status", object,
                                    absl::StrCat("--timeout=", absl::ToInt64Seconds(timeout), "s")})
                                 .status());
    return absl::OkStatus();
  }

  // A port-forward ends with its pod, so each call makes one anew if need be.
  absl::StatusOr<std::string> Sluice(std::vector<std::string> args) {
    if (forward_ == nullptr || !forward_->running()) {
      SLUICE_ASSIGN_OR_RETURN(
          forward_, integration::Process::Start({.binary = "/usr/bin/env",
                                                 .args = {"kubectl", "-n", "sluice", "port-forward",
                                                          "service/controller", ":7400"}}));
      // "Forwarding from 127.0.0.1:40123 -> 7400"
      SLUICE_ASSIGN_OR_RETURN(const std::string line, forward_->ReadLine(absl::Seconds(30)));
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words.size() < 3 || words[0] != "Forwarding") return absl::UnavailableError(line);
      server_ = words[2];
    }
    args.insert(args.begin(), std::string(SLUICE_BIN_DIR) + "/sluice");
    return RunCommand(args, {{"SLUICE_TLS", dir_ + "/ca/operator"}, {"SLUICE_SERVER", server_}},
                      absl::Hours(2));
  }

  // Waits until the job trains steps that it had not trained when this was called.
  absl::Status AwaitNewSteps(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    int64_t first = -1;
    absl::Status last = absl::DeadlineExceededError("no answer");
    while (absl::Now() < deadline) {
      const absl::StatusOr<std::string> text = Sluice({"job", "describe", "digits", "-o", "json"});
      last = text.status();
      if (!text.ok()) {
        forward_.reset();  // A broken forward may still run.
        continue;
      }
      const nlohmann::json job = nlohmann::json::parse(*text);
      const int64_t step = job.at("step").get<int64_t>();
      last = absl::DeadlineExceededError(absl::StrCat("the job stays at step ", step, ": ", *text));
      if (first < 0) first = step;
      // Back at a checkpoint, the job counts up again from there.
      if (step < first) first = step;
      if (step > first) return absl::OkStatus();
    }
    return last;
  }

  // Runs `change` and prints how long it took until the fleet was whole and the job went on.
  template <typename Change>
  void Disturb(const std::string& what, const Change& change) {
    SCOPED_TRACE(what);
    const absl::Time start = absl::Now();
    ASSERT_TRUE(change().ok());
    const absl::Status ready = AwaitRollout(kReplaced);
    ASSERT_TRUE(ready.ok()) << ready;
    const absl::Duration whole = absl::Now() - start;
    const absl::Status goes_on = AwaitNewSteps(absl::Minutes(5));
    ASSERT_TRUE(goes_on.ok()) << goes_on;
    std::cout << what << ": all ready after " << absl::Trunc(whole, absl::Milliseconds(100))
              << ", new steps after " << absl::Trunc(absl::Now() - start, absl::Milliseconds(100))
              << std::endl;
  }

  std::string dir_, server_;
  bool ours_ = false;
  std::unique_ptr<integration::Process> forward_;
};

TEST_F(ClusterTest, AJobSurvivesLostPodsARollingUpdateAndADrainedNode) {
  const absl::Time start = absl::Now();
  const absl::Status applied = Apply();
  ASSERT_TRUE(applied.ok()) << applied;
  const absl::Status ready = AwaitRollout(kReady);
  ASSERT_TRUE(ready.ok()) << ready;
  std::cout << "ready after " << absl::Trunc(absl::Now() - start, absl::Milliseconds(100))
            << std::endl;
  EXPECT_LE(absl::Now() - start, kReady);
  const absl::Status trains = AwaitNewSteps(absl::Minutes(5));
  ASSERT_TRUE(trains.ok()) << trains;

  for (const std::string role : {"rollout", "reward", "queue", "trainer", "controller"}) {
    Disturb(absl::StrCat("deleted the pod of ", role), [&] {
      return Fleet({"delete", "pod", "-l", "app.kubernetes.io/component=" + role}).status();
    });
    if (HasFatalFailure()) return;
  }

  Disturb("rolling update of all",
          [&] { return Fleet({"rollout", "restart", "deployment,statefulset"}).status(); });
  if (HasFatalFailure()) return;

  // Volumes may tie the other pods to their node, so only those without one must move.
  const absl::StatusOr<std::string> nodes = Kubectl({"get", "nodes", "-o", "name"});
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  const std::vector<std::string> names = absl::StrSplit(*nodes, '\n', absl::SkipEmpty());
  if (names.size() > 1) {
    const absl::StatusOr<std::string> node =
        Fleet({"get", "pod", "-l", "app.kubernetes.io/component=rollout", "-o",
               "jsonpath={.items[0].spec.nodeName}"});
    ASSERT_TRUE(node.ok()) << node.status();
    Disturb(absl::StrCat("drained the node ", *node), [&] {
      return Kubectl({"drain", *node, "--ignore-daemonsets", "--delete-emptydir-data",
                      "--pod-selector=app.kubernetes.io/component in (rollout,reward)"})
          .status();
    });
    EXPECT_TRUE(Kubectl({"uncordon", *node}).ok());
    if (HasFatalFailure()) return;
  } else {
    std::cout << "no node is drained: the cluster has only one" << std::endl;
  }

  const absl::StatusOr<std::string> ended =
      Sluice({"job", "wait", "digits", "--for", "SUCCEEDED", "--timeout", "2h"});
  ASSERT_TRUE(ended.ok()) << ended.status();
  const absl::StatusOr<std::string> ledger = Sluice({"queue", "fsck", "digits"});
  EXPECT_TRUE(ledger.ok()) << ledger.status();
  std::cout << Sluice({"job", "describe", "digits"}).value_or("") << *ledger << "SUCCEEDED after "
            << absl::Trunc(absl::Now() - start, absl::Seconds(1)) << std::endl;
}

}  // namespace
}  // namespace sluice::deploy
