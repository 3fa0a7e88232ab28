#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/config/job_file.h"
#include "common/meta/store.h"
#include "common/pki/certificate.h"
#include "common/policy/policy.h"
#include "tests/deploy/checks.h"
#include "tests/deploy/command.h"
#include "tests/deploy/golden.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::deploy {
namespace {
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// The Secrets that deploy/k8s/make-secrets.sh prints, with certificates of the real CLI.
const Manifest& Secrets() {
  static const Manifest secrets = [] {
    const auto text = RunCommand(
        {std::string(SLUICE_SOURCE_DIR) + "/deploy/k8s/make-secrets.sh", MakeTempDir().value()},
        {{"SLUICE_CLI", std::string(SLUICE_BIN_DIR) + "/sluice"}});
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? ParseManifest(*text).value() : Manifest();
  }();
  return secrets;
}

// The value of a daemon's argument; empty without it.
std::string ArgumentOf(const Manifest& manifest, const std::string& role, const std::string& flag) {
  for (const Object& object : manifest) {
    if (!PodSpec(object).IsDefined() || RoleOf(object) != role) continue;
    for (const YAML::Node& argument : PodSpec(object)["containers"][0]["args"]) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(argument.Scalar(), absl::MaxSplits('=', 1));
      if (parts.first == flag) return parts.second;
    }
  }
  return "";
}

class OverlayTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!HasKubectl())
      GTEST_SKIP() << "there is no kubectl to render deploy/k8s with; apt-get install "
                      "kubernetes-client";
    const absl::StatusOr<std::string> text = Render(GetParam());
    ASSERT_TRUE(text.ok()) << text.status();
    text_ = *text;
    absl::StatusOr<Manifest> manifest = ParseManifest(text_);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    manifest_ = *std::move(manifest);
  }

  std::string text_;
  Manifest manifest_;
};
INSTANTIATE_TEST_SUITE_P(All, OverlayTest, testing::Values("dev", "prod", "gpu"),
                         [](const auto& overlay) { return overlay.param; });

TEST_P(OverlayTest, EveryNameIsThatOfSomething) {
  EXPECT_THAT(FindUnresolvedNames(manifest_, Secrets()), IsEmpty());
}

TEST_P(OverlayTest, EveryPodIsConfinedAndHasLimits) {
  EXPECT_THAT(FindUnconfinedPods(manifest_), IsEmpty());
}

TEST_P(OverlayTest, EveryDaemonIsProbedOnItsOpsPortAndHasTimeToDrain) {
  EXPECT_THAT(FindWrongProbes(manifest_), IsEmpty());
}

TEST_P(OverlayTest, EachDaemonKnowsItsFlagsAndVariables) {
  for (const Object& object : manifest_) {
    const std::string role = RoleOf(object);
    if (!PodSpec(object).IsDefined() || role == "cli" || role == "redis") continue;
    const YAML::Node daemon = PodSpec(object)["containers"][0];
    const absl::StatusOr<std::string> help =
        RunCommand({absl::StrCat(SLUICE_BIN_DIR, "/sluice-", role), "--help"});
    ASSERT_TRUE(help.ok()) << help.status();
    for (const YAML::Node& argument : daemon["args"]) {
      const std::string flag = argument.Scalar().substr(0, argument.Scalar().find('='));
      EXPECT_THAT(*help, HasSubstr(absl::StrCat(flag, " "))) << object.name;
    }
    for (const YAML::Node& variable : daemon["env"]) {
      const std::string name = TextAt(variable, "name");
      if (absl::StartsWith(name, "SLUICE_")) EXPECT_THAT(*help, HasSubstr(name)) << object.name;
    }
  }
}

TEST_P(OverlayTest, TheNamespaceRefusesOtherPods) {
  const Object* const fleet = Find(manifest_, "Namespace", "sluice");
  ASSERT_NE(fleet, nullptr);
  EXPECT_EQ(LabelsAt(fleet->yaml, "metadata.labels")["pod-security.kubernetes.io/enforce"],
            "baseline");
}

// A controller does not start with a policy that it cannot read.
TEST_P(OverlayTest, TheControllersGetAPolicyThatTheyCanReadAndThatAllowsTheExampleJob) {
  const auto map = std::find_if(manifest_.begin(), manifest_.end(), [](const Object& object) {
    return object.kind == "ConfigMap" && absl::StartsWith(object.name, "policy-");
  });
  ASSERT_NE(map, manifest_.end());
  const std::string file = MakeTempDir().value() + "/policy.yaml";
  ASSERT_TRUE(WriteFileAtomic(file, LabelsAt(map->yaml, "data")["policy.yaml"]).ok());

  const absl::StatusOr<Policy> policy = ReadPolicy(file);

  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_NE(policy->FindQuota("anybody"), nullptr);
  const JobFile digits = ReadJobFile(SLUICE_SOURCE_DIR "/configs/examples/digits.yaml");
  ASSERT_NE(digits.spec, nullptr);
  EXPECT_THAT(CheckCaps(*policy, *digits.spec), IsEmpty());
}

// The table of deploy/README.md.
TEST_P(OverlayTest, OnlyTheListedEdgesAreOpen) {
  std::set<std::string> wanted = {
      "cli -> controller 7400/TCP",
      "queue -> controller 7400/TCP",
      "rollout -> controller 7400/TCP",
      "reward -> controller 7400/TCP",
      "trainer -> controller 7400/TCP",
      "controller -> queue 7410/TCP",
      "controller -> rollout 7420/TCP",
      "controller -> reward 7430/TCP",
      "controller -> trainer 7440/TCP",
      "rollout -> queue 7410/TCP",
      "reward -> queue 7410/TCP",
      "trainer -> queue 7410/TCP",
      "rollout -> trainer 7440/TCP",
      "rollout -> rollout 7420/TCP",
      "rollout -> reward 7430/TCP",
      "reward -> rollout 7420/TCP",
      "trainer -> rollout 7420/TCP",
      "trainer -> trainer 7440/TCP",
      absl::StrCat("trainer -> trainer ", ArgumentOf(manifest_, "trainer", "--collective-ports"),
                   "/TCP"),
      "namespace{} pod{sluice.dev/openai-client=true} -> rollout 7422/TCP"};
  constexpr char kPrometheus[] =
      "namespace{kubernetes.io/metadata.name=monitoring} pod{app.kubernetes.io/name=prometheus}";
  constexpr char kDns[] =
      "namespace{kubernetes.io/metadata.name=kube-system} pod{k8s-app=kube-dns}";
  for (const auto& [role, ops] : {std::pair{"controller", 7401},
                                  {"queue", 7411},
                                  {"rollout", 7421},
                                  {"reward", 7431},
                                  {"trainer", 7441},
                                  {"redis", 0},
                                  {"cli", 0}}) {
    // The jobs of `dev` are in a file of the controller.
    if (role == std::string("redis")) {
      if (GetParam() == "dev") continue;
      wanted.insert("controller -> redis 6379/TCP");
    }
    if (ops != 0) wanted.insert(absl::StrCat(kPrometheus, " -> ", role, " ", ops, "/TCP"));
    for (const char* protocol : {"TCP", "UDP"})
      wanted.insert(absl::StrCat(role, " -> ", kDns, " 53/", protocol));
  }

  EXPECT_TRUE(DeniesByDefault(manifest_));
  EXPECT_EQ(ListEdges(manifest_), wanted);
}

TEST_P(OverlayTest, NothingThatTheClusterGetsChangesUnnoticed) {
  EXPECT_EQ(CompareWithGolden(GetParam(), manifest_), "");
}

// kubernetes-validate (PyPI) has the schemas of the API server.
TEST_P(OverlayTest, ItsObjectsFollowTheSchemasOfKubernetes136) {
  const std::string packages = SLUICE_SOURCE_DIR "/.deps/kubernetes-validate";
  if (!PathExists(packages)) GTEST_SKIP() << packages << " is not there; tools/test.sh installs it";
  const std::string rendered = MakeTempDir().value() + "/objects.yaml";
  ASSERT_TRUE(WriteFileAtomic(rendered, text_).ok());

  const auto validate = [&](const std::string& file) {
    return RunCommand({"python3", "-m", "kubernetes_validate", "--strict", "-k", "1.36.0", file},
                      {{"PYTHONPATH", packages}});
  };
  EXPECT_TRUE(validate(rendered).ok()) << validate(rendered).status();

  // Strict means that a word too much is an error.
  ASSERT_TRUE(
      WriteFileAtomic(rendered, absl::StrReplaceAll(text_, {{"clusterIP:", "clusterIp:"}})).ok());
  EXPECT_FALSE(validate(rendered).ok());
}

// A change of a good manifest, and the sentence of the check that finds it.
struct Fault {
  const char* text;
  const char* replacement;
  std::vector<std::string> (*check)(const Manifest&);
  const char* finding;
};

std::vector<std::string> Names(const Manifest& manifest) {
  return FindUnresolvedNames(manifest, Secrets());
}

const Fault kFaults[] = {
    {"runAsNonRoot: true", "runAsNonRoot: false", FindUnconfinedPods, "runAsNonRoot"},
    {"            - SETUID\n", "            - SETUID\n            - SYS_ADMIN\n",
     FindUnconfinedPods, "Deployment/reward: a capability is added"},
    {"capabilities:\n            drop:",
     "capabilities:\n            add: [CHOWN]\n            drop:", FindUnconfinedPods,
     "Deployment/rollout: a capability is added"},
    {"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", FindUnconfinedPods,
     "readOnlyRootFilesystem"},
    {"automountServiceAccountToken: false", "automountServiceAccountToken: true",
     FindUnconfinedPods, "automountServiceAccountToken"},
    {"defaultMode: 288", "defaultMode: 420", FindUnconfinedPods, "defaultMode"},
    {"enableServiceLinks: false", "hostNetwork: true", FindUnconfinedPods, "hostNetwork"},
    {"            cpu: 250m\n            ephemeral-storage: 128Mi\n"
     "            memory: 2Gi",
     "            cpu: 250m\n            ephemeral-storage: 128Mi\n"
     "            memory: 1Gi",
     FindUnconfinedPods, "resources.requests.memory"},
    {"terminationGracePeriodSeconds: 600", "terminationGracePeriodSeconds: 30", FindWrongProbes,
     "terminationGracePeriodSeconds"},
    {"path: /readyz", "path: /livez", FindWrongProbes, "readinessProbe"},
    {"secretName: sluice-tls-queue", "secretName: sluice-tls-qeue", Names,
     "no Secret sluice-tls-qeue"},
    {"claimName: checkpoints", "claimName: checkpoint", Names,
     "no PersistentVolumeClaim checkpoint"},
    {"--controller=controller:7400", "--controller=controller:7401x", Names,
     "no Service has the address controller:7401x"},
    {"--id=$(POD_NAME)", "--id=$(POD)", Names, "no variable POD is set"},
    {"image: sluice-queue:dev", "image: sluice-qeue:dev", Names, "no image sluice-qeue:dev"},
    {"targetPort: ops", "targetPort: opps", Names, "no port opps"},
    {"serviceName: trainer", "serviceName: trainers", Names, "no Service trainers"},
    {"configMap:\n          name: policy", "configMap:\n          name: polcy", Names,
     "no ConfigMap polcy-"},
    {"  policy.yaml: |", "  polcy.yaml: |", Names,
     "no ConfigMap has the file /etc/sluice/policy/policy.yaml"},
};

TEST(ChecksTest, EachFindsTheFaultsThatItIsFor) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  const absl::StatusOr<std::string> good = Render("dev");
  ASSERT_TRUE(good.ok()) << good.status();

  for (const Fault& fault : kFaults) {
    const std::string bad = absl::StrReplaceAll(*good, {{fault.text, fault.replacement}});
    ASSERT_NE(*good, bad) << fault.text;

    EXPECT_THAT(fault.check(ParseManifest(bad).value()), Contains(HasSubstr(fault.finding)));
  }
}

TEST(EdgesTest, AnEdgeThatOneEndRefusesIsClosed) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  Manifest manifest = ParseManifest(Render("dev").value()).value();
  ASSERT_TRUE(ListEdges(manifest).contains("rollout -> trainer 7440/TCP"));

  std::erase_if(manifest, [](const Object& object) {
    return object.kind == "NetworkPolicy" && object.name == "trainer";
  });

  EXPECT_FALSE(ListEdges(manifest).contains("rollout -> trainer 7440/TCP"));
}

TEST(SecretsTest, EachRoleGetsACertificateForAllDaemonsOfIt) {
  for (const auto& [role, name] : {std::pair{"controller", "*"},
                                   {"queue", "*"},
                                   {"rollout", "*"},
                                   {"reward", "*"},
                                   {"trainer", "*"},
                                   {"submitter", "cluster"}}) {
    const Object* const secret = Find(Secrets(), "Secret", absl::StrCat("sluice-tls-", role));
    ASSERT_NE(secret, nullptr) << role;
    EXPECT_EQ(TextAt(secret->yaml, "metadata.namespace"), "sluice");
    const auto data = LabelsAt(secret->yaml, "data");
    const auto decode = [&](const char* key) {
      std::string text;
      EXPECT_TRUE(data.contains(key) && absl::Base64Unescape(data.at(key), &text)) << key;
      return text;
    };

    const pki::KeyPair pair{decode("tls.crt"), Secret(decode("tls.key"))};

    EXPECT_TRUE(pki::CheckKeyPair(pair, decode("ca.crt"), absl::Now()).ok());
    EXPECT_EQ(pki::ParseCertificate(pair.certificate)->subject.uri,
              absl::StrCat("spiffe://sluice/sluice/", role, "/", name));
  }
}

// The real redis-server with the arguments of the manifest and the files of the Secret.
TEST(RedisTest, TheRedisOfProdHasTheSettingsThatTheControllerDemands) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl";
  const Manifest prod = ParseManifest(Render("prod").value()).value();
  const Object* const secret = Find(Secrets(), "Secret", "sluice-redis");
  const Object* const redis = Find(prod, "StatefulSet", "redis");
  ASSERT_TRUE(secret != nullptr && redis != nullptr);
  const std::string dir = MakeTempDir().value();
  for (const auto& [name, encoded] : LabelsAt(secret->yaml, "data")) {
    std::string content;
    ASSERT_TRUE(absl::Base64Unescape(encoded, &content)) << name;
    ASSERT_TRUE(WriteSecretAtomic(absl::StrCat(dir, "/", name), content).ok());
  }

  const std::string port = absl::StrCat(integration::FindFreePort());
  std::vector<std::string> args;
  for (const YAML::Node& argument : PodSpec(*redis)["containers"][0]["args"]) {
    args.push_back(absl::StrReplaceAll(
        argument.Scalar(), {{"/etc/sluice/redis", dir}, {"/data", dir}, {"6379", port}}));
  }
  ASSERT_EQ(args[0], "redis-server");
  args.erase(args.begin());
  const auto server =
      integration::Process::Start({.binary = "/usr/bin/redis-server", .args = args});
  ASSERT_TRUE(server.ok()) << server.status();
  while (true) {
    const absl::StatusOr<std::string> line = (*server)->ReadLine(integration::kLong);
    ASSERT_TRUE(line.ok()) << line.status();
    if (absl::StrContains(*line, "Ready to accept connections")) break;
  }

  const auto store =
      meta::Open({.url = absl::StrCat("rediss://localhost:", port),
                  .password_file = dir + "/password",
                  .ca_file = dir + "/ca.crt",
                  .holder = "test",
                  .lease = {.renew = absl::Milliseconds(1), .poll = absl::Milliseconds(1)}});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Put("a", "1").ok());
}

TEST(SecretsTest, ASecondCallRenewsTheCertificatesUnderTheSameAuthority) {
  const std::string script = std::string(SLUICE_SOURCE_DIR) + "/deploy/k8s/make-secrets.sh",
                    dir = MakeTempDir().value();
  const std::map<std::string, std::string> env = {
      {"SLUICE_CLI", std::string(SLUICE_BIN_DIR) + "/sluice"}};
  const auto read = [&](const char* secret, const char* key) {
    const Manifest secrets =
        ParseManifest(RunCommand({script, dir, "--namespace", "other"}, env).value()).value();
    EXPECT_NE(Find(secrets, "Namespace", "other"), nullptr);
    return LabelsAt(Find(secrets, "Secret", secret)->yaml, "data").at(key);
  };

  EXPECT_EQ(read("sluice-tls-queue", "ca.crt"), read("sluice-tls-queue", "ca.crt"));
  EXPECT_NE(read("sluice-tls-queue", "tls.crt"), read("sluice-tls-queue", "tls.crt"));
  EXPECT_EQ(read("sluice-redis", "password"), read("sluice-redis", "password"));
}

}  // namespace
}  // namespace sluice::deploy
