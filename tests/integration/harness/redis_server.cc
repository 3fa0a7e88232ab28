#include "tests/integration/harness/redis_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::integration {
namespace {
constexpr absl::Duration kPatience = absl::Seconds(30);

int FindFreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  return ok ? ntohs(address.sin_port) : 0;
}
}  // namespace

std::unique_ptr<RedisServer> RedisServer::Start(const std::string& password) {
  signal(SIGPIPE, SIG_IGN);  // As every daemon does.
  absl::Status status;
  for (int tries = 0; tries < 5; ++tries) {  // Another process may take the port first.
    std::unique_ptr<RedisServer> server(new RedisServer);
    server->port_ = FindFreePort();
    server->password_ = password;
    status = server->Restart();
    if (status.ok()) return server;
  }
  ADD_FAILURE() << status;
  return nullptr;
}

absl::Status RedisServer::Restart() {
  std::vector<std::string> args = {"--port", absl::StrCat(port_), "--bind", "127.0.0.1",   "--save",
                                   "",       "--appendonly",      "no",     "--daemonize", "no"};
  if (!password_.empty()) args.insert(args.end(), {"--requirepass", password_});
  connection_ = nullptr;
  SLUICE_ASSIGN_OR_RETURN(process_, Process::Start({.binary = "/usr/bin/redis-server",
                                                    .args = args,
                                                    .working_dir = testing::TempDir()}));
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
