// The overlays on a real cluster, that of KUBECONFIG. The namespace `sluice` is made, and removed
// at the end of each test. What the tests need (deploy/README.md, "Tests"):
//   SLUICE_TEST_REGISTRY=registry.example/team   names are then registry.example/team/sluice-queue
//   SLUICE_TEST_TAG=dev
//   SLUICE_TEST_REDIS_IMAGE=registry.example/team/redis:7.2
//   SLUICE_TEST_CUT, SLUICE_TEST_HEAL   shell commands that cut the node $NODE off, and undo it

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/deploy/command.h"
#include "tests/deploy/manifest.h"
#include "tests/deploy/readme.h"
#include "tests/integration/harness/process.h"

namespace sluice::deploy {
namespace {

constexpr absl::Duration kReady = absl::Seconds(60);
// A pod may use its whole grace period before the next one starts; a trainer has the longest.
constexpr absl::Duration kReplaced = absl::Minutes(12);
constexpr char kOurs[] = "app.kubernetes.io/name=sluice";

std::string Variable(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

absl::Duration Since(absl::Time start) {
  return absl::Trunc(absl::Now() - start, absl::Milliseconds(100));
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
      for (const char* command :
           {"get pods -o wide", "get events --sort-by=.lastTimestamp", "describe pods"})
        std::cout << Fleet(absl::StrSplit(command, ' ')).value_or("") << std::endl;
      for (const std::string role : {"controller", "queue", "rollout", "reward", "trainer"})
        std::cout << Fleet({"logs", "--prefix", "--tail=20", "-l",
                            "app.kubernetes.io/component=" + role})
                         .value_or("")
                  << std::endl;
    }
    forwards_.clear();
    // Those that hand work over first: without a queue they would wait for one through their grace.
    for (const char* workers : {"statefulset/trainer", "deployment/rollout", "deployment/reward"})
      Fleet({"delete", workers, "--ignore-not-found", "--cascade=foreground"}).IgnoreError();
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

  // Applies the Secrets and `dev` with the commands of deploy/README.md, as a person does who has
  // written the names of the images into the overlay.
  absl::Status ApplyAsWritten() {
    forwards_.push_back({"service/controller"});
    std::filesystem::copy(std::string(SLUICE_SOURCE_DIR) + "/deploy", dir_ + "/deploy",
                          std::filesystem::copy_options::recursive);
    const std::string file = dir_ + "/deploy/k8s/overlays/dev/kustomization.yaml";
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    YAML::Node kustomization = YAML::Load(text);
    const std::string registry = Variable("SLUICE_TEST_REGISTRY", "");
    for (YAML::Node image : kustomization["images"]) {
      if (!registry.empty())
        image["newName"] = absl::StrCat(registry, "/", image["name"].as<std::string>());
      image["newTag"] = Variable("SLUICE_TEST_TAG", "dev");
    }
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(file, YAML::Dump(kustomization)));

    SLUICE_ASSIGN_OR_RETURN(const std::string block, ReadFirstSteps());
    return RunBlock(block, dir_ + "/deploy", dir_).status();
  }

  // Applies the Secrets and an overlay, with `changes` to its text. `forwards` are the objects
  // whose port 7400 the CLI calls.
  absl::Status Apply(const std::string& overlay, std::vector<std::string> forwards,
                     const std::vector<std::pair<std::string, std::string>>& changes) {
    for (const std::string& object : forwards) forwards_.push_back({object});
    SLUICE_ASSIGN_OR_RETURN(
        const std::string secrets,
        RunCommand(
            {std::string(SLUICE_SOURCE_DIR) + "/deploy/k8s/make-secrets.sh", dir_ + "/sluice-ca"},
            {{"SLUICE_CLI", std::string(SLUICE_BIN_DIR) + "/sluice"}}));
    SLUICE_ASSIGN_OR_RETURN(std::string objects, Render(overlay));
    const std::string registry = Variable("SLUICE_TEST_REGISTRY", "");
    const std::string tag = absl::StrCat(":", Variable("SLUICE_TEST_TAG", "dev"), "\n");
    objects = absl::StrReplaceAll(
        objects, {{"image: sluice-",
                   absl::StrCat("image: ", registry, registry.empty() ? "" : "/", "sluice-")},
                  {":dev\n", tag},
                  {":0.1.0\n", tag}});
    objects = absl::StrReplaceAll(objects, changes);
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/secrets.yaml", secrets));
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/objects.yaml", objects));
    for (const char* file : {"/secrets.yaml", "/objects.yaml"})
      SLUICE_RETURN_IF_ERROR(Kubectl({"apply", "-f", dir_ + file}).status());
    return absl::OkStatus();
  }

  static absl::Status AwaitRollout(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    SLUICE_ASSIGN_OR_RETURN(const std::string objects,
                            Fleet({"get", "deployment,statefulset", "-l", kOurs, "-o", "name"}));
    for (const std::string& object :
         std::vector<std::string>(absl::StrSplit(objects, '\n', absl::SkipEmpty()))) {
      const int64_t left = std::max<int64_t>(1, absl::ToInt64Seconds(deadline - absl::Now()));
      SLUICE_RETURN_IF_ERROR(
          Fleet({"rollout", "status", object, absl::StrCat("--timeout=", left, "s")}).status());
    }
    return absl::OkStatus();
  }

  // A port-forward ends with its pod, so each call makes anew those that have ended.
  absl::Status Forward() {
    std::vector<std::string> servers;
    bool changed = false;
    absl::Status last = absl::OkStatus();
    for (Forwarded& forward : forwards_) {
      if (forward.process == nullptr || !forward.process->running()) {
        changed = true;
        forward.server.clear();
        last = Forward(&forward);
      }
      if (!forward.server.empty()) servers.push_back(forward.server);
    }
    if (servers.empty()) return last;
    if (!changed) return absl::OkStatus();
    return RunCommand(
               {std::string(SLUICE_BIN_DIR) + "/sluice", "context", "set", "cluster", "--server",
                absl::StrJoin(servers, ","), "--tls", dir_ + "/sluice-ca/operator"},
               {{"XDG_CONFIG_HOME", dir_}})
        .status();
  }

  // Calls the fleet by the name of a context, as a person does.
  absl::StatusOr<std::string> Sluice(std::vector<std::string> args) {
    SLUICE_RETURN_IF_ERROR(Forward());
    args.insert(args.begin(), {std::string(SLUICE_BIN_DIR) + "/sluice", "--context", "cluster"});
    return RunCommand(args, {{"XDG_CONFIG_HOME", dir_}}, absl::Minutes(15));
  }

  // Calls until the fleet is reached, because a port-forward may break at any time, or hang when
  // its pod is gone. The exit codes 7 and 6 say that nobody was there, or answered.
  absl::StatusOr<std::string> SluiceOnceReached(const std::vector<std::string>& args,
                                                absl::Duration timeout = absl::Minutes(2)) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      absl::StatusOr<std::string> out = Sluice(args);
      const absl::string_view error = out.status().message();
      const bool reached = out.ok() || (absl::IsInternal(out.status()) &&
                                        !absl::StrContains(error, " ended with 7:") &&
                                        !absl::StrContains(error, " ended with 6:"));
      if (reached || absl::Now() > deadline) return out;
      // A forward to a pod that is gone may still run.
      for (Forwarded& forward : forwards_) forward.process.reset();
      absl::SleepFor(absl::Milliseconds(200));
    }
  }

  // Submits the example under another name, to last until Finish().
  absl::Status SubmitLongJob() {
    SLUICE_ASSIGN_OR_RETURN(std::string job, ReadFile(std::string(SLUICE_SOURCE_DIR) +
                                                      "/configs/examples/digits.yaml"));
    constexpr char kName[] = "\nname: digits\n";
    SLUICE_CHECK(absl::StrContains(job, kName));
    constexpr char kExamples[] = "/usr/share/sluice/examples";
    job = absl::StrReplaceAll(job,
                              {{kName, "\nname: long\n"},
                               {"config: digits", absl::StrCat("config: ", kExamples, "/digits")},
                               {"path: digits/", absl::StrCat("path: ", kExamples, "/digits/")}});
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/long.yaml", job));
    return SluiceOnceReached({"job", "submit", dir_ + "/long.yaml", "--remote-files",
                              "--set=checkpoint.dir=/checkpoints", "--set=limits.wall=4h",
                              "--set=limits.max_steps=1000000",
                              "--set=limits.restarts_per_hour=100"})
        .status();
  }

  absl::StatusOr<int64_t> Step() {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            SluiceOnceReached({"job", "describe", "long", "-o", "json"}));
    return nlohmann::json::parse(text).at("step").get<int64_t>();
  }

  // Waits until the job trains steps that it had not trained when this was called.
  absl::Status AwaitNewSteps(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    SLUICE_ASSIGN_OR_RETURN(int64_t first, Step());
    while (absl::Now() < deadline) {
      SLUICE_ASSIGN_OR_RETURN(const int64_t step, Step());
      // Back at a checkpoint, the job counts up again from there.
      first = std::min(first, step);
      if (step > first) return absl::OkStatus();
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "the job stays at step ", first, ": ", Sluice({"job", "describe", "long"}).value_or(""),
        Sluice({"why", "long"}).value_or("")));
  }

  // Runs `change` and prints how long it took until the fleet was whole and the job went on.
  void Disturb(const std::string& what, const std::function<absl::Status()>& change) {
    SCOPED_TRACE(what);
    const absl::Time start = absl::Now();
    const absl::Status changed = change();
    ASSERT_TRUE(changed.ok()) << changed;
    const absl::Duration done = Since(start);
    const absl::Status ready = AwaitRollout(kReplaced);
    ASSERT_TRUE(ready.ok()) << ready;
    const absl::Duration whole = Since(start);
    // It took 5 to 25 s on two cores with a load of 10 to 25.
    const absl::Status goes_on = AwaitNewSteps(absl::Minutes(1));
    ASSERT_TRUE(goes_on.ok()) << goes_on;
    std::cout << what << ": done after " << done << ", all ready after " << whole
              << ", new steps after " << Since(start) << std::endl;
  }

  // Fills the memory of a rollout's container until the kernel kills the daemon. Many processes of
  // 48 MiB each do it, and the daemon has the highest score, so it is the one that goes.
  static absl::Status KillRolloutForMemory() {
    SLUICE_ASSIGN_OR_RETURN(const std::string pod, PodOf("rollout"));
    constexpr char kRestarts[] = "jsonpath={.status.containerStatuses[0].restartCount}";
    SLUICE_ASSIGN_OR_RETURN(const std::string before, Fleet({"get", pod, "-o", kRestarts}));
    const absl::StatusOr<std::string> filled =
        Fleet({"exec", pod, "--", "sh", "-c",
               "echo 1000 >/proc/1/oom_score_adj || exit 9\n"
               "for i in $(seq 60); do\n"
               "  (head -c 48M /dev/zero; sleep 60) | tail -c 48M >/dev/null &\n"
               "done\nwait"});
    const absl::Time deadline = absl::Now() + absl::Minutes(2);
    while (absl::Now() < deadline) {
      SLUICE_ASSIGN_OR_RETURN(const std::string after, Fleet({"get", pod, "-o", kRestarts}));
      if (after == before) continue;
      SLUICE_ASSIGN_OR_RETURN(
          const std::string reason,
          Fleet({"get", pod, "-o",
                 "jsonpath={.status.containerStatuses[0].lastState.terminated.reason}"}));
      if (reason == "OOMKilled") return absl::OkStatus();
      return absl::InternalError(absl::StrCat(pod, " ended with the reason ", reason));
    }
    return absl::DeadlineExceededError(
        absl::StrCat(pod, " was not killed: ", filled.status().ToString()));
  }

  // "pod/rollout-7d9f-x2z" of the first pod of a role.
  static absl::StatusOr<std::string> PodOf(const std::string& role) {
    SLUICE_ASSIGN_OR_RETURN(
        const std::string pods,
        Fleet({"get", "pods", "-l", "app.kubernetes.io/component=" + role, "-o", "name"}));
    if (pods.empty()) return absl::NotFoundError(absl::StrCat("there is no pod of ", role));
    return pods.substr(0, pods.find('\n'));
  }
  static absl::StatusOr<std::string> NodeOf(const std::string& role) {
    SLUICE_ASSIGN_OR_RETURN(const std::string pod, PodOf(role));
    return Fleet({"get", pod, "-o", "jsonpath={.spec.nodeName}"});
  }
  static absl::StatusOr<int> CountNodes() {
    SLUICE_ASSIGN_OR_RETURN(const std::string nodes, Kubectl({"get", "nodes", "-o", "name"}));
    return std::vector<std::string>(absl::StrSplit(nodes, '\n', absl::SkipEmpty())).size();
  }

  // Drains a node of the pods that `selector` selects, and lets it take pods again. Fails if a
  // budget has fewer healthy pods than it demands at any time.
  static absl::Status Drain(const std::string& node, const std::string& selector) {
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<integration::Process> drain,
        integration::Process::Start(
            {.binary = "/usr/bin/env",
             .args = {"kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data",
                      "--pod-selector=" + selector, "--timeout=15m"}}));
    absl::Status budgets = absl::OkStatus();
    while (budgets.ok() && absl::IsDeadlineExceeded(drain->Await(absl::Seconds(1)).status()))
      budgets = CheckBudgets();
    SLUICE_RETURN_IF_ERROR(budgets);
    SLUICE_ASSIGN_OR_RETURN(const int exit, drain->Await(absl::Minutes(16)));
    SLUICE_ASSIGN_OR_RETURN(const std::string out, drain->ReadAll(absl::Seconds(10)));
    SLUICE_ASSIGN_OR_RETURN(const std::string left,
                            Fleet({"get", "pods", "-l", selector, "--field-selector",
                                   "spec.nodeName=" + node, "-o", "name"}));
    SLUICE_RETURN_IF_ERROR(Kubectl({"uncordon", node}).status());
    if (exit != 0)
      return absl::InternalError(absl::StrCat("kubectl drain ended with ", exit, ": ", out));
    if (!left.empty()) return absl::InternalError(absl::StrCat(left, " is left on ", node));
    return absl::OkStatus();
  }

  static absl::Status CheckBudgets() {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            Fleet({"get", "poddisruptionbudgets", "-o", "json"}));
    for (const nlohmann::json& budget : nlohmann::json::parse(text).at("items")) {
      const nlohmann::json& status = budget.at("status");
      if (status.value("currentHealthy", 0) < status.value("desiredHealthy", 0))
        return absl::InternalError(absl::StrCat("the budget is broken: ", budget.dump()));
    }
    return absl::OkStatus();
  }

  // Cuts a node off until the cluster has noticed, and a while longer.
  static absl::Status CutOff(const std::string& node) {
    const auto shell = [&](const char* variable) {
      return RunCommand({"sh", "-c", Variable(variable, "")}, {{"NODE", node}}).status();
    };
    const auto becomes = [&](const std::string& ready) {
      return Kubectl({"wait", "node/" + node, absl::StrCat("--for=condition=Ready=", ready),
                      "--timeout=5m"})
          .status();
    };
    SLUICE_RETURN_IF_ERROR(shell("SLUICE_TEST_CUT"));
    const absl::Status noticed = becomes("Unknown");
    if (noticed.ok()) absl::SleepFor(absl::Seconds(30));
    SLUICE_RETURN_IF_ERROR(shell("SLUICE_TEST_HEAL"));
    SLUICE_RETURN_IF_ERROR(noticed);
    return becomes("True");
  }

  // Lets the long job end, by a limit that it has reached already, and checks its ledger.
  void Finish(absl::Time start) {
    const absl::StatusOr<std::string> set =
        SluiceOnceReached({"job", "set", "long", "limits.wall=1m"});
    ASSERT_TRUE(set.ok()) << set.status();
    ExpectSucceeded("long");
    if (HasFatalFailure()) return;
    std::cout << "SUCCEEDED after " << Since(start) << std::endl;
  }

  void ExpectSucceeded(const std::string& job) {
    const absl::StatusOr<std::string> ended =
        SluiceOnceReached({"job", "wait", job, "--for", "SUCCEEDED", "--timeout", "10m"});
    ASSERT_TRUE(ended.ok()) << ended.status();
    const absl::StatusOr<std::string> ledger = SluiceOnceReached({"queue", "fsck", job});
    ASSERT_TRUE(ledger.ok()) << ledger.status();
    std::cout << SluiceOnceReached({"job", "describe", job}).value_or("") << *ledger << std::endl;
  }

  struct Forwarded {
    std::string object, server;
    std::unique_ptr<integration::Process> process;
  };
  static absl::Status Forward(Forwarded* forward) {
    SLUICE_ASSIGN_OR_RETURN(
        forward->process,
        integration::Process::Start(
            {.binary = "/usr/bin/env",
             .args = {"kubectl", "-n", "sluice", "port-forward", forward->object, ":7400"}}));
    // "Forwarding from 127.0.0.1:40123 -> 7400"
    SLUICE_ASSIGN_OR_RETURN(const std::string line, forward->process->ReadLine(absl::Seconds(30)));
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() < 3 || words[0] != "Forwarding") return absl::UnavailableError(line);
    forward->server = words[2];
    return absl::OkStatus();
  }

  std::string dir_;
  bool ours_ = false;
  std::vector<Forwarded> forwards_;
};

TEST_F(ClusterTest, AJobSurvivesLostPodsARollingUpdateAnOomKillADrainedAndACutOffNode) {
  const absl::Time start = absl::Now();
  const absl::Status applied = ApplyAsWritten();
  ASSERT_TRUE(applied.ok()) << applied;
  const absl::Status ready = AwaitRollout(kReady);
  ASSERT_TRUE(ready.ok()) << ready;
  std::cout << "ready after " << Since(start) << std::endl;
  EXPECT_LE(absl::Now() - start, kReady);

  // The job of the overlay itself, and then one that a person submits.
  const absl::StatusOr<std::string> submitted_one =
      Fleet({"wait", "job/submit-digits", "--for=condition=Complete", "--timeout=2m"});
  ASSERT_TRUE(submitted_one.ok()) << submitted_one.status();
  ExpectSucceeded("digits");
  if (HasFatalFailure()) return;
  const absl::Status submitted = SubmitLongJob();
  ASSERT_TRUE(submitted.ok()) << submitted;
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

  Disturb("killed a rollout for memory", KillRolloutForMemory);
  if (HasFatalFailure()) return;

  const absl::StatusOr<int> nodes = CountNodes();
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  if (*nodes > 1) {
    const absl::StatusOr<std::string> node = NodeOf("rollout");
    ASSERT_TRUE(node.ok()) << node.status();
    // Volumes may tie the other pods to their node, so only those without one must move.
    Disturb(absl::StrCat("drained the node ", *node),
            [&] { return Drain(*node, "app.kubernetes.io/component in (rollout,reward)"); });
    if (HasFatalFailure()) return;
  } else {
    std::cout << "no node is drained: the cluster has only one" << std::endl;
  }

  if (!Variable("SLUICE_TEST_CUT", "").empty()) {
    const absl::StatusOr<std::string> node = NodeOf("rollout");
    ASSERT_TRUE(node.ok()) << node.status();
    Disturb(absl::StrCat("cut the node ", *node, " off"), [&] { return CutOff(*node); });
    if (HasFatalFailure()) return;
  } else {
    std::cout << "no node is cut off: SLUICE_TEST_CUT is not set" << std::endl;
  }

  Finish(start);
}

// `prod`, with less CPU and memory than it asks for. Its volumes must be such as all nodes mount.
TEST_F(ClusterTest, AFleetWithBudgetsSurvivesADrainedNodeAndALostLeader) {
  const absl::StatusOr<int> nodes = CountNodes();
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  if (*nodes < 2) GTEST_SKIP() << "the cluster has only one node, and one is to be drained";
  const absl::Time start = absl::Now();
  const absl::Status applied =
      Apply("prod", {"pod/controller-0", "pod/controller-1"},
            {{"cpu: \"1\"\n", "cpu: 100m\n"},
             {"cpu: \"2\"\n", "cpu: 250m\n"},
             {"cpu: \"4\"\n", "cpu: 250m\n"},
             {"cpu: \"8\"\n", "cpu: \"1\"\n"},
             {"memory: 4Gi\n", "memory: 512Mi\n"},
             {"memory: 16Gi\n", "memory: 1Gi\n"},
             {"memory: 32Gi\n", "memory: 2Gi\n"},
             {"docker.io/library/redis:7.2.4-bookworm",
              Variable("SLUICE_TEST_REDIS_IMAGE", "docker.io/library/redis:7.2.4-bookworm")}});
  ASSERT_TRUE(applied.ok()) << applied;
  const absl::Status ready = AwaitRollout(absl::Minutes(3));
  ASSERT_TRUE(ready.ok()) << ready;
  std::cout << "ready after " << Since(start) << std::endl;
  const absl::Status submitted = SubmitLongJob();
  ASSERT_TRUE(submitted.ok()) << submitted;
  const absl::Status trains = AwaitNewSteps(absl::Minutes(5));
  ASSERT_TRUE(trains.ok()) << trains;

  for (const char* pod : {"controller-0", "controller-1", "redis-0"}) {
    Disturb(absl::StrCat("deleted ", pod), [&] { return Fleet({"delete", "pod", pod}).status(); });
    if (HasFatalFailure()) return;
  }
  for (const std::string role : {"redis", "queue"}) {
    const absl::StatusOr<std::string> node = NodeOf(role);
    ASSERT_TRUE(node.ok()) << node.status();
    Disturb(absl::StrCat("drained the node ", *node, " with the first pod of ", role),
            [&] { return Drain(*node, kOurs); });
    if (HasFatalFailure()) return;
  }
  Disturb("rolling update of all",
          [&] { return Fleet({"rollout", "restart", "deployment,statefulset"}).status(); });
  if (HasFatalFailure()) return;

  Finish(start);
}

}  // namespace
}  // namespace sluice::deploy
