#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

// The whole answer to a GET, its headers first.
std::string HttpGet(const std::string& address, const std::string& path) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(parts.second, &port)) << address;
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0) << address;
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;) answer.append(bytes, static_cast<size_t>(n));
  close(fd);
  return answer;
}

TEST(LoopTest, AJobRunsToItsEndAndItsBooksBalance) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  const auto job = SubmitDigits(&cluster, /*steps=*/3);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3);
  EXPECT_EQ(CheckBooks(*end), absl::OkStatus());
}

TEST(LoopTest, EveryDaemonAnswersItsMonitorsAndMeasuresItsWork) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/100000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, absl::Minutes(1)), absl::OkStatus());
  for (const std::string& id : cluster.ids()) {
    EXPECT_TRUE(absl::StrContains(HttpGet(cluster.ops(id), "/livez"), " 200 ")) << id;
    EXPECT_TRUE(absl::StrContains(HttpGet(cluster.ops(id), "/readyz"), " 200 ")) << id;
    const std::string role = id.substr(0, id.find('-'));
    EXPECT_TRUE(absl::StrContains(HttpGet(cluster.ops(id), "/metrics"), absl::StrCat("\nsluice_", role, "_"))) << id;
  }
}

}  // namespace
}  // namespace sluice::integration
