#include "tests/integration/harness/redis_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/pki/certificate.h"
#include "common/pki/tls_dir.h"

namespace sluice::integration {
namespace {
constexpr absl::Duration kPatience = absl::Seconds(30);
}  // namespace

int FindFreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  return ok ? ntohs(address.sin_port) : 0;
}

std::string MakeRedisTlsDir(const std::string& dir) {
  const absl::Time now = absl::Now();
  const pki::Validity validity = {now - absl::Hours(1), now + absl::Hours(1)};
  const pki::KeyPair authority =
      *pki::MakeAuthority({.name = "authority", .uri = "spiffe://test"}, validity);
  const pki::KeyPair pair = *pki::IssueCertificate(
      authority, {.name = "redis", .uri = "spiffe://test/redis", .hosts = {"127.0.0.1"}}, validity);
  EXPECT_EQ(pki::WriteTlsDir(dir, {.pair = pair, .authority = authority.certificate}),
            absl::OkStatus());
  return dir;
}

std::unique_ptr<RedisServer> RedisServer::Start(Options options) {
  signal(SIGPIPE, SIG_IGN);  // As every daemon does.
  std::string dir = (std::filesystem::temp_directory_path() / "sluice_redis_XXXXXX").string();
  SLUICE_CHECK(mkdtemp(dir.data()) != nullptr);
  std::unique_ptr<RedisServer> server(new RedisServer);
  server->options_ = std::move(options);
  server->dir_ = dir;
  absl::Status status;
  for (int tries = 0; tries < 5; ++tries) {  // Another process may take the port first.
    server->port_ = FindFreePort();
    status = server->Restart();
    if (status.ok()) return server;
  }
  ADD_FAILURE() << status;
  return nullptr;
}

RedisServer::~RedisServer() {
  process_ = nullptr;
  std::filesystem::remove_all(dir_);
}

redis::Endpoint RedisServer::endpoint() const {
  redis::Endpoint endpoint{.port = port_, .password = Secret(std::string(options_.password))};
  if (!options_.tls_dir.empty()) {
    endpoint.tls = true;
    endpoint.ca_file = absl::StrCat(options_.tls_dir, "/", pki::kAuthorityFile);
  }
  return endpoint;
}

absl::Status RedisServer::Restart() {
  const std::string port = absl::StrCat(port_);
  std::vector<std::string> args = {
      "--bind",        "127.0.0.1", "--save",       "",
      "--daemonize",   "no",        "--appendonly", options_.durable ? "yes" : "no",
      "--appendfsync", "always"};
  if (options_.tls_dir.empty()) {
    args.insert(args.end(), {"--port", port});
  } else {
    const std::string dir = absl::StrCat(options_.tls_dir, "/");
    args.insert(args.end(), {"--port", "0", "--tls-port", port, "--tls-auth-clients", "no",
                             "--tls-cert-file", dir + pki::kCertificateFile, "--tls-key-file",
                             dir + pki::kKeyFile, "--tls-ca-cert-file", dir + pki::kAuthorityFile});
  }
  if (!options_.password.empty()) args.insert(args.end(), {"--requirepass", options_.password});
  args.insert(args.end(), options_.args.begin(), options_.args.end());
  connection_ = nullptr;
  SLUICE_ASSIGN_OR_RETURN(
      process_,
      Process::Start({.binary = "/usr/bin/redis-server", .args = args, .working_dir = dir_}));
  std::string said;
  while (true) {
    const absl::StatusOr<std::string> line = process_->ReadLine(kPatience);
    if (!line.ok()) return Annotate(line.status(), absl::StrCat("redis-server said: ", said));
    if (absl::StrContains(*line, "Ready to accept connections")) return absl::OkStatus();
    absl::StrAppend(&said, *line, "\n");
  }
}

void RedisServer::Kill() {
  process_->Signal(SIGKILL);
  EXPECT_EQ(process_->Await(kPatience).value_or(0), -SIGKILL);
}

redis::Reply RedisServer::Run(const redis::Command& command) {
  if (connection_ == nullptr) {
    connection_ = std::make_unique<redis::Connection>(endpoint(), kPatience);
    if (absl::Status status = connection_->Connect(); !status.ok())
      return {.kind = redis::Reply::Kind::kError, .text = std::string(status.message())};
  }
  const auto replies = connection_->Run({&command, 1});
  if (replies.ok()) return replies->front();
  connection_ = nullptr;
  return {.kind = redis::Reply::Kind::kError, .text = std::string(replies.status().message())};
}

}  // namespace sluice::integration
