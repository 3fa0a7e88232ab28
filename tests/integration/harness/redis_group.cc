#include "tests/integration/harness/redis_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"

namespace sluice::integration {
namespace {

constexpr char kMasterName[] = "sluice-store";
constexpr int kSentinels = 3;

// Asks until it holds. False: it does not after kLong.
bool AwaitUntil(const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + kLong;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

// The value of a field of SENTINEL MASTER.
std::string SentinelField(const redis::Reply& reply, const std::string& name) {
  for (size_t i = 0; i + 1 < reply.list.size(); i += 2) {
    if (reply.list[i].text == name) return reply.list[i + 1].text;
  }
  return "";
}

}  // namespace

std::unique_ptr<RedisGroup> RedisGroup::Start(Options options) {
  std::unique_ptr<RedisGroup> group(new RedisGroup);
  group->options_ = std::move(options);
  group->dir_ = (std::filesystem::temp_directory_path() / "sluice_sentinels_XXXXXX").string();
  SLUICE_CHECK(mkdtemp(group->dir_.data()) != nullptr);

  std::vector<std::string> args = group->options_.args;
  if (!group->options_.tls_dir.empty()) args.insert(args.end(), {"--tls-replication", "yes"});
  if (!group->options_.password.empty())
    args.insert(args.end(), {"--masterauth", group->options_.password});
  for (int i = 0; i < (group->options_.replica ? 2 : 1); ++i) {
    std::vector<std::string> own = args;
    if (i > 0) {
      own.insert(own.end(),
                 {"--replicaof", absl::StrCat("127.0.0.1 ", group->server(0).endpoint().port)});
    }
    group->servers_.push_back(RedisServer::Start({.password = group->options_.password,
                                                  .tls_dir = group->options_.tls_dir,
                                                  .durable = true,
                                                  .args = own}));
    if (group->servers_.back() == nullptr) return nullptr;
  }
  for (int i = 0; i < kSentinels; ++i) {
    const absl::Status status = group->StartSentinel();
    if (status.ok()) continue;
    ADD_FAILURE() << status;
    return nullptr;
  }
  if (AwaitUntil([&] { return group->IsReady(); })) return group;
  ADD_FAILURE() << "the Sentinels do not find each other and the replica";
  return nullptr;
}

RedisGroup::~RedisGroup() {
  sentinels_.clear();
  std::filesystem::remove_all(dir_);
}

absl::Status RedisGroup::StartSentinel() {
  const int master = server(0).endpoint().port;
  absl::Status status;
  for (int tries = 0; tries < 5; ++tries) {  // Another process may take the port first.
    const int port = FindFreePort();
    const std::string file = absl::StrCat(dir_, "/sentinel-", port, ".conf");
    std::vector<std::string> lines = {
        "bind 127.0.0.1", absl::StrCat("dir ", dir_),
        absl::StrCat("sentinel monitor ", kMasterName, " 127.0.0.1 ", master, " 2"),
        absl::StrCat("sentinel down-after-milliseconds ", kMasterName, " 1000"),
        absl::StrCat("sentinel failover-timeout ", kMasterName, " 3000")};
    if (options_.tls_dir.empty()) {
      lines.push_back(absl::StrCat("port ", port));
    } else {
      lines.insert(
          lines.end(),
          {"port 0", absl::StrCat("tls-port ", port), "tls-auth-clients no", "tls-replication yes",
           absl::StrCat("tls-cert-file ", options_.tls_dir, "/", pki::kCertificateFile),
           absl::StrCat("tls-key-file ", options_.tls_dir, "/", pki::kKeyFile),
           absl::StrCat("tls-ca-cert-file ", options_.tls_dir, "/", pki::kAuthorityFile)});
    }
    if (!options_.password.empty()) {
      lines.push_back(absl::StrCat("requirepass ", options_.password));
      lines.push_back(absl::StrCat("sentinel auth-pass ", kMasterName, " ", options_.password));
      lines.push_back(absl::StrCat("sentinel sentinel-pass ", options_.password));
    }
    lines.insert(lines.end(), options_.lines.begin(), options_.lines.end());
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(file, absl::StrJoin(lines, "\n") + "\n"));

    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Process> process,
                            Process::Start({.binary = "/usr/bin/redis-server",
                                            .args = {file, "--sentinel"},
                                            .working_dir = dir_}));
    std::string said;
    while (true) {
      const absl::StatusOr<std::string> line = process->ReadLine(kLong);
      status = line.ok() ? absl::OkStatus()
                         : Annotate(line.status(), absl::StrCat("the Sentinel said: ", said));
      if (!line.ok()) break;
      absl::StrAppend(&said, *line, "\n");
      if (!absl::StrContains(*line, "+monitor master")) continue;
      redis::Endpoint endpoint = server(0).endpoint();
      endpoint.port = port;
      ports_.push_back(port);
      connections_.push_back(std::make_unique<redis::Connection>(endpoint, kLong));
      sentinels_.push_back(std::move(process));
      return connections_.back()->Connect();
    }
  }
  return status;
}

redis::Reply RedisGroup::Ask(int sentinel, const redis::Command& command) {
  const auto replies = connections_[static_cast<size_t>(sentinel)]->Run({&command, 1});
  if (replies.ok()) return replies->front();
  return {.kind = redis::Reply::Kind::kError, .text = std::string(replies.status().message())};
}

bool RedisGroup::IsReady() {
  for (int i = 0; i < kSentinels; ++i) {
    const redis::Reply said = Ask(i, {"SENTINEL", "MASTER", kMasterName});
    if (SentinelField(said, "flags") != "master") return false;
    if (SentinelField(said, "num-other-sentinels") != absl::StrCat(kSentinels - 1)) return false;
    if (SentinelField(said, "num-slaves") != absl::StrCat(servers_.size() - 1)) return false;
    // Until all of them are connected, a vote may fail, and the next one is only seconds later.
    const redis::Reply others = Ask(i, {"SENTINEL", "SENTINELS", kMasterName});
    for (const redis::Reply& other : others.list) {
      if (SentinelField(other, "flags") != "sentinel") return false;
    }
    const redis::Reply replicas = Ask(i, {"SENTINEL", "REPLICAS", kMasterName});
    for (const redis::Reply& replica : replicas.list) {
      if (SentinelField(replica, "flags") != "slave") return false;
      if (SentinelField(replica, "master-link-status") != "ok") return false;
    }
  }
  return servers_.size() == 1 ||
         absl::StrContains(server(0).Run({"INFO", "replication"}).text, "state=online");
}

std::string RedisGroup::UrlOf(const std::vector<int>& ports) const {
  const std::string hosts = absl::StrJoin(
      ports, ",", [](std::string* out, int port) { absl::StrAppend(out, "127.0.0.1:", port); });
  return absl::StrCat(options_.tls_dir.empty() ? "redis" : "rediss", "+sentinel://", hosts, "/",
                      kMasterName);
}

std::string RedisGroup::url() const { return UrlOf(ports_); }

bool RedisGroup::AwaitMaster(int index) {
  const std::string port = absl::StrCat(server(index).endpoint().port);
  return AwaitUntil([&] {
    int named = 0;
    for (int i = 0; i < kSentinels; ++i) {
      const redis::Reply said = Ask(i, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", kMasterName});
      if (said.list.size() == 2 && said.list[1].text == port) ++named;
    }
    return named > kSentinels / 2;
  });
}

bool RedisGroup::AwaitInfo(int index, const std::string& text) {
  return AwaitUntil(
      [&] { return absl::StrContains(server(index).Run({"INFO", "everything"}).text, text); });
}

bool RedisGroup::AddSentinel() {
  if (!StartSentinel().ok()) return false;
  return AwaitUntil([&] {
    for (int i = 0; i < kSentinels; ++i) {
      const redis::Reply said = Ask(i, {"SENTINEL", "MASTER", kMasterName});
      if (SentinelField(said, "num-other-sentinels") != absl::StrCat(kSentinels)) return false;
    }
    return true;
  });
}

std::string RedisGroup::FirstTerm() {
  return absl::StrCat("0 127.0.0.1:", server(0).endpoint().port);
}

}  // namespace sluice::integration
