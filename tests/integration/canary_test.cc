// Secrets and texts of prompts are planted in a fleet, which then works, and is used wrongly. None
// of them may be found in what the fleet writes and shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/pki/tls_dir.h"
#include "tests/common/daemon/http.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/redis_server.h"
#include "tests/services/rollout/http/client.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class CanaryTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "canary_test_" + ToHex(RandomId16());
    ASSERT_EQ(MakeDirs(dir_), absl::OkStatus());
  }
  void TearDown() override { (void)RemoveTree(dir_); }

  // A new text that is nowhere else. `place` says where it is put.
  std::string Plant(const std::string& place) {
    return canaries_[place] = absl::StrCat("canary", ToHex(RandomId16()));
  }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(dir_, "/", name);
    EXPECT_EQ(WriteFileAtomic(path, text), absl::OkStatus());
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  }

  // Notes what a person can see, by where they see it.
  void Show(const std::string& where, const std::string& text) { shown_[where] += text; }

  // Runs a program of the fleet with arguments that it must refuse.
  void ExpectRefused(const std::string& binary, std::vector<std::string> args) {
    args.insert(args.end(),
                {"--insecure-loopback", "--controller", "127.0.0.1:1", "--data-dir", dir_ + "/x"});
    const auto done =
        RunToEnd({.binary = binary, .args = std::move(args), .log = dir_ + "/refused.log"}, kLong);
    ASSERT_EQ(done.status(), absl::OkStatus());
    EXPECT_NE(done->exit, 0) << done->out << done->err;
    Show(absl::StrCat("error of ", binary), done->out + done->err);
  }

  void ExpectNothingShown() const {
    EXPECT_GE(canaries_.size(), 12u);
    EXPECT_GE(shown_.size(), 25u);
    for (const auto& [where, text] : shown_) {
      EXPECT_FALSE(text.empty()) << where << " shows nothing at all";
      for (const auto& [place, canary] : canaries_) {
        const size_t at = text.find(canary);
        if (at == std::string::npos) continue;
        ADD_FAILURE() << place << " is in " << where << ": "
                      << text.substr(at < 200 ? 0 : at - 200, 400);
      }
    }
  }

  std::string dir_;
  std::map<std::string, std::string> canaries_;  // By place.
  std::map<std::string, std::string> shown_;
};

std::string HttpAddress(const std::string& log) {
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    const size_t at = line.find("\"address\":\"");
    if (at == absl::string_view::npos || !absl::StrContains(line, "http_listening")) continue;
    return std::string(line.substr(at + 11, line.find('"', at + 11) - at - 11));
  }
  ADD_FAILURE() << "no HTTP API: " << log;
  return "";
}

std::string Complete(const std::string& address, const std::string& key, const std::string& body) {
  rollout::http::Client client(address);
  client.Send(
      absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                   "Connection: close\r\nContent-Type: application/json\r\n"
                   "Authorization: Bearer ",
                   key, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  return client.Rest();
}

TEST_F(CanaryTest, NothingPlantedIsInLogsMetricsErrorsOrWhatPeopleAreShown) {
  const std::string redis_password = Plant("the Redis password in the environment"),
                    api_key = Plant("the key file of the API");
  const auto redis = RedisServer::Start({.password = redis_password});
  ASSERT_NE(redis, nullptr);
  const std::string redis_url = absl::StrCat("redis://127.0.0.1:", redis->endpoint().port);
  const std::string rows = Write(
      "rows.jsonl", absl::StrCat(R"({"digits": "4821", "answer": ")", Plant("the answer of a row"),
                                 R"(", "note": ")", Plant("another field of a row"), "\"}\n"));
  const std::string policy =
      Write("policy.yaml", absl::StrCat("# ", Plant("the policy file"), "\ncaps: {}\n"));

  Cluster cluster(
      {.env = {{"SLUICE_MIRROR", redis_url},
               {"SLUICE_MIRROR_PASSWORD", redis_password},
               {"SLUICE_HTTP", "127.0.0.1:0"},
               {"SLUICE_HTTP_KEYS", Write("keys", absl::StrCat("tenant ", api_key, "\n"))},
               {"SLUICE_POLICY", policy},
               {"AWS_SECRET_ACCESS_KEY", Plant("an environment variable")}},
       .tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  // The second line of a key's text is a part of the key.
  for (const std::string name : {"controller-0", "queue-0", "rollout-0", "trainer-0", "operator"}) {
    const std::string key =
        *ReadFile(absl::StrCat(cli::FleetTlsDir(cluster.dir(), name), "/", pki::kKeyFile));
    canaries_["the private key of " + name] =
        std::vector<std::string>(absl::StrSplit(key, '\n'))[1];
  }
  canaries_["the authority's key"] = std::vector<std::string>(absl::StrSplit(
      *ReadFile(absl::StrCat(cluster.dir(), "/ca/", pki::kAuthorityKeyFile)), '\n'))[1];

  // A job and the API work.
  const auto job = SubmitDigits(
      &cluster, /*steps=*/1'000'000,
      {"data.train.0.path=" + rows, "data.train.0.answer=answer", "queue.keep.durability=full"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  const std::string api = HttpAddress(cluster.Log("rollout-0"));
  EXPECT_THAT(Complete(api, api_key, R"({"model": "digits", "prompt": "4821=", "max_tokens": 2})"),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(daemon::HttpGet(cluster.ops("queue-0"), "/metrics"),
              HasSubstr("sluice_queue_mirror_connected 1"));

  // People and programs make mistakes. What they get to see of their own texts is theirs.
  EXPECT_THAT(Complete(api, Plant("a wrong key in a request"), R"({"model": "digits"})"),
              StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Complete(api, api_key,
                       absl::StrCat(R"({"model": "digits", "prompt": ")",
                                    Plant("the prompt of a request"), "\"}")),
              HasSubstr("HTTP/1.1 "));
  EXPECT_THAT(Complete(api, api_key, Plant("a request that is no JSON")),
              StartsWith("HTTP/1.1 400"));
  ExpectRefused("sluice-queue", {"--mirror", absl::StrCat("redis://:", Plant("a password in a URL"),
                                                          "@127.0.0.1")});
  ExpectRefused("sluice-queue",
                {"--mirror", redis_url, "--mirror-password-file",
                 Write("lines", absl::StrCat(Plant("a password of two lines"), "\nmore\n"))});
  ExpectRefused(
      "sluice-rollout",
      {"--http", "127.0.0.1:0", "--http-keys",
       Write("bad-keys", absl::StrCat("tenant ", Plant("a wrong line of a key file"), " many\n"))});
  {
    const auto bad = cluster.Sluice(
        {"job", "submit", SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", "--set", "name=bad",
         "--set", "checkpoint.dir=" + cluster.dir() + "/checkpoints", "--set",
         "data.train.0.path=" +
             Write("bad.jsonl",
                   absl::StrCat("{\"digits\": ", Plant("a row that is no JSON"), "\n"))});
    ASSERT_EQ(bad.status(), absl::OkStatus());
    Show("error of job submit", bad->err + "-");
  }
  {
    // A queue with a wrong password goes on without its Redis, and logs why.
    const auto queue = Process::Start(
        {.binary = "sluice-queue",
         .args = {"--insecure-loopback", "--mirror", redis_url, "--mirror-password-file",
                  Write("password", Plant("a wrong Redis password in a file"))},
         .log = dir_ + "/queue.log"});
    ASSERT_EQ(queue.status(), absl::OkStatus());
    const absl::Time deadline = absl::Now() + kLong;
    std::string log;
    while (!absl::StrContains(log, "mirror_") && absl::Now() < deadline) {
      ASSERT_EQ((*job)->AwaitStep((*job)->steps(), kLong), absl::OkStatus());
      log = ReadFile(dir_ + "/queue.log").value_or("");
    }
    EXPECT_THAT(log, HasSubstr("refuses"));
    Show("log of a queue with a wrong password", log);
  }

  // What people are shown.
  const std::string id = (*job)->id();
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"job", "list"},
                                             {"job", "list", "-o", "json"},
                                             {"job", "describe", id},
                                             {"job", "describe", id, "-o", "json"},
                                             {"job", "events", id},
                                             {"job", "steps", id},
                                             {"job", "logs", id, "-o", "jsonl"},
                                             {"daemon", "list", "-o", "wide"},
                                             {"why", id},
                                             {"queue", "stats", id},
                                             {"queue", "peek", id},
                                             {"queue", "fsck", id},
                                             {"meta", "backup", "-o", dir_ + "/jobs.backup"},
                                             {"bug-report", "-o", dir_ + "/report.tar.gz"}}) {
    const auto said = cluster.Sluice(command);
    ASSERT_EQ(said.status(), absl::OkStatus());
    EXPECT_EQ(said->exit, 0) << command[0] << " " << command[1] << said->err;
    Show(absl::StrCat("sluice ", command[0], " ", command[1], " ", command.back()),
         said->out + said->err);
  }
  Show("a backup of the jobs", *ReadFile(dir_ + "/jobs.backup"));
  const auto report = RunToEnd(
      {.binary = "/bin/tar", .args = {"-xzOf", dir_ + "/report.tar.gz"}, .log = dir_ + "/tar.log"},
      kLong);
  ASSERT_EQ(report.status(), absl::OkStatus());
  EXPECT_THAT(report->out, HasSubstr(R"("daemon":"trainer-0")")) << "the log lines are in it";
  Show("a bug report", report->out);
  for (const std::string path : {"", "/app.js", "/api/jobs", "/api/daemons", "/api/jobs/nobody"})
    Show("/ui" + path, daemon::HttpGet(cluster.ops("controller-0"), "/ui" + path));
  for (const std::string path : {"", "/why"}) {
    const std::string page =
        daemon::HttpGet(cluster.ops("controller-0"), "/ui/api/jobs/" + id + path);
    EXPECT_THAT(page, StartsWith("HTTP/1.1 200")) << path;
    Show("/ui/api/jobs/ID" + path, page);
  }

  const auto cancelled = cluster.Sluice({"job", "cancel", id});
  ASSERT_EQ(cancelled.status(), absl::OkStatus());
  EXPECT_EQ(cancelled->exit, 0) << cancelled->err;
  Show("sluice job cancel", cancelled->out + cancelled->err);
  ASSERT_EQ((*job)->AwaitEnd(kLong).status(), absl::OkStatus());
  for (const std::string& daemon : cluster.ids()) {
    Show("log of " + daemon, cluster.Log(daemon));
    for (const char* page : {"/metrics", "/livez", "/readyz"})
      Show(daemon + page, daemon::HttpGet(cluster.ops(daemon), page));
  }
  // The controller's store, which backups and reports of bugs are made of.
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(cluster.dir() + "/controller-0")) {
    if (file.is_regular_file() && file.file_size() > 0)
      Show("the controller's " + file.path().filename().string(), *ReadFile(file.path().string()));
  }

  ExpectNothingShown();
}

}  // namespace
}  // namespace sluice::integration
