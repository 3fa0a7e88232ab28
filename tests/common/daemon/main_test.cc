#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/client.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/common/daemon/http.h"

namespace sluice::daemon {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Runs echo_daemon as a child process and reads what it writes. The destructor does not end the
// process: a test ends it and calls Wait().
class Child {
 public:
  explicit Child(std::vector<std::string> flags) {
    int out[2], err[2];
    EXPECT_EQ(pipe(out), 0);
    EXPECT_EQ(pipe(err), 0);

    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (int fd : {out[0], out[1], err[0], err[1]}) close(fd);
      std::vector<char*> argv;
      flags.insert(flags.begin(), SLUICE_BIN_DIR "/echo_daemon");
      for (std::string& flag : flags) argv.push_back(flag.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }

    close(out[1]);
    close(err[1]);
    out_ = fdopen(out[0], "r");
    err_ = fdopen(err[0], "r");
  }
  ~Child() {
    std::fclose(out_);
    std::fclose(err_);
  }
  pid_t pid() const { return pid_; }
  std::string Line() {
    char line[4096] = "";
    return std::fgets(line, sizeof(line), out_) == nullptr ? "" : line;
  }
  std::string Errors() {
    std::string all;
    char line[4096];
    while (std::fgets(line, sizeof(line), err_) != nullptr) all += line;
    return all;
  }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
  FILE* out_;
  FILE* err_;
};

TEST(MainTest, ADaemonSaysWhereItListensServesAndDrainsOnSigterm) {
  Child child({"--insecure-loopback", "--listen", "127.0.0.1:0", "--id", "echo-1"});
  const auto said = nlohmann::json::parse(child.Line());
  const std::string ops = said["ops"];

  EXPECT_THAT(HttpGet(ops, "/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(ops, "/readyz"), HasSubstr("no job"));
  EXPECT_THAT(HttpGet(ops, "/metrics"), HasSubstr("sluice_build_info{role=\"queue\""));

  {
    const auto channel = *rpc::Connect(said["listening"].get<std::string>(), rpc::kDaemonRoles);
    queue::v1::StatsResponse response;
    ASSERT_TRUE(rpc::Call(*channel, queue::v1::StatsRequest(), &response).ok());
    EXPECT_EQ(response.version(), 7);
  }

  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.Line(), "drained\n");
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_THAT(child.Errors(), HasSubstr("\"daemon\":\"echo-1\",\"event\":\"started\""));
}

TEST(MainTest, ADaemonThatStopsItselfSaysWhyAndFails) {
  Child child({"--insecure-loopback", "--id", "stops-itself"});
  EXPECT_EQ(child.Wait(), 1);
  EXPECT_THAT(
      child.Errors(),
      HasSubstr("sluice-echo: error SLUICE-CTL-0002: the controller speaks protocols 2 to 3\n"
                "hint: upgrade it\n"));
}

TEST(MainTest, AMisuseIsExitCodeTwo) {
  Child child({"--thread", "many"});
  EXPECT_EQ(child.Wait(), 2);
  EXPECT_THAT(child.Errors(), HasSubstr("--thread"));
}

TEST(MainTest, HelpHasAnExample) {
  Child child({"--help"});
  std::string help;
  for (std::string line; !(line = child.Line()).empty();) help += line;
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_THAT(help, HasSubstr("Example: sluice-echo --listen 127.0.0.1:7000"));
  EXPECT_THAT(help, HasSubstr("--controller"));
}

TEST(MainTest, AnAddressOffLoopbackIsRefused) {
  Child child({"--insecure-loopback", "--listen", "0.0.0.0:0"});
  EXPECT_EQ(child.Wait(), 1);
  EXPECT_THAT(child.Errors(), HasSubstr("TLS is needed off loopback"));
}

TEST(MainTest, ADaemonOnAllInterfacesNeedsRootsAndAnAddressToAdvertise) {
  const std::string dir = testing::TempDir() + "main_test_tls";
  const absl::Time now = absl::Now();
  const pki::Validity validity{now - absl::Hours(1), now + absl::Hours(1)};
  const pki::KeyPair authority =
      *pki::MakeAuthority({.name = "authority", .uri = "spiffe://test"}, validity);
  const pki::Subject subject{.name = "queue-0", .uri = "spiffe://test/sluice/queue/queue-0"};
  ASSERT_TRUE(pki::WriteTlsDir(dir, {*pki::IssueCertificate(authority, subject, validity),
                                     authority.certificate})
                  .ok());

  Child rootless({"--tls", dir, "--listen", "0.0.0.0:0", "--advertise", "queue-0.queue"});
  EXPECT_EQ(rootless.Wait(), 1);
  EXPECT_THAT(rootless.Errors(), HasSubstr("SLUICE-AUTH-0011"));

  Child silent({"--tls", dir, "--listen", "0.0.0.0:0", "--read-root", dir});
  EXPECT_EQ(silent.Wait(), 1);
  EXPECT_THAT(silent.Errors(), HasSubstr("SLUICE-RPC-0003"));

  Child child(
      {"--tls", dir, "--listen", "0.0.0.0:0", "--advertise", "queue-0.queue", "--read-root", dir});
  const auto said = nlohmann::json::parse(child.Line());
  EXPECT_THAT(said["listening"].get<std::string>(), StartsWith("queue-0.queue:"));
  kill(child.pid(), SIGTERM);
  EXPECT_EQ(child.Wait(), 0);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace sluice::daemon
