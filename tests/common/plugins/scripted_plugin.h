#pragma once

#include <grpcpp/channel.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/child.h"
#include "common/base/mutex.h"
#include "common/plugins/plugin_host.h"
#include "tests/common/plugins/folder.h"

// A plug-in that does, for each answer, what the answer says, right or wrong, as a program and as a
// server, and a host that runs it.
namespace sluice {

// Speaks the protocol of processes, and does what ScriptedServer does, as far as it can be said
// there. An answer "score 0.5" gets this score.
inline constexpr char kScriptedProgram[] = R"(
import json, os, signal, sys, time
out = os.fdopen(os.dup(1), "w")
def write(text):
    out.write(text + "\n")
    out.flush()
hello = json.loads(sys.stdin.readline())
config = hello["config"]
if config.get("start") == "exit":
    sys.exit("cannot find the model")
if config.get("start") == "silent":
    time.sleep(1000)
if config.get("start") == "garbage":
    write("Welcome!")
write(json.dumps({"name": "test", "version": "1", "max_in_flight": config.get("in_flight", 1),
                  "granularity": config.get("granularity", "trajectory"),
                  "self_test": [{"item": {"completion": "score 1"},
                                 "score": config.get("self_test", 1)}]}))
held = []
for line in sys.stdin:
    request = json.loads(line)
    results = []
    answer = True
    for item in request["items"]:
        word, _, value = item["completion"].partition(" ")
        if word == "score":
            results.append({"score": float(value)})
        elif word == "raw":
            results.append(json.loads(value))
        elif word == "hang":
            time.sleep(1000)
        elif word == "exit":
            sys.exit(3)
        elif word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "kill_once":
            try:
                os.close(os.open(value, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                results.append({"score": 1})
        elif word == "leave":  # Closes its output, answered or not.
            try:
                os.close(os.open(value, os.O_CREAT | os.O_EXCL))
                sys.exit(0)
            except FileExistsError:
                results.append({"score": 1})
        elif word == "echo":  # 1 if the item is as it should be.
            wanted = {"prompt": "3+4", "completion": "echo", "ground_truth": "7",
                      "data_source": "sums", "extra_info": {"level": 2}, "truncated": True}
            results.append({"score": float(hello["job"] == "digits" and item == wanted)})
        elif word == "print":
            print("a print that goes to stdout", flush=True)
            results.append({"score": 1})
        elif word == "stderr":
            sys.stderr.write("noise\n" * 100000)
            results.append({"score": 1})
        elif word == "twice":
            write(json.dumps({"id": request["id"], "results": [{"score": 1}]}))
            results.append({"score": 0})
        elif word == "nan":
            write('{"id": %d, "results": [{"score": NaN}]}' % request["id"])
            answer = False
        elif word == "long":
            write("x" * (20 << 20))
        elif word == "other":
            write(json.dumps({"id": 10 ** 6, "results": []}))
        elif word == "hold":  # Answered after the next one, in the wrong order.
            held.append((request["id"], value))
            answer = False
        elif word == "count":
            results = [{"score": 1}] * int(value)
    if answer:
        write(json.dumps({"id": request["id"], "results": results}))
        for id, value in held:
            write(json.dumps({"id": id, "results": [{"score": float(value)}]}))
        held = []
)";

enum class PluginKind { kProgram, kServer };

class ScriptedPluginTest : public testing::Test {
 protected:
  explicit ScriptedPluginTest(PluginKind kind) : kind_(kind) {}
  ~ScriptedPluginTest() override {
    host_ = nullptr;
    if (server_.pid <= 0) return;
    kill(-server_.pid, SIGKILL);
    kill(server_.pid, SIGKILL);
  }

  bool is_server() const { return kind_ == PluginKind::kServer; }

  // Makes a host of the plug-in with this config, and the error if there is one.
  absl::Status MakeHost(nlohmann::json config = nlohmann::json::object(),
                        nlohmann::json args = nlohmann::json::object(),
                        PluginHost::Options options = {}) {
    if (is_server()) {
      if (server_.pid <= 0) StartServer();
      args["grpc"] = "scripted";
      args.erase("processes");
      config["version_file"] = version_file_;
      options.servers = &servers_;
    } else {
      args["exec"] = {"python3", WritePlugin("conformance/program.py", kScriptedProgram)};
      if (!args.contains("processes")) args["processes"] = 1;
    }
    args["config"] = std::move(config);
    options.job = "digits";
    options.name = "mine";
    options.spec = *ParsePluginSpec(args);
    options.first_back_off = absl::Milliseconds(1);
    auto host = PluginHost::Make(std::move(options));
    if (host.ok()) host_ = *std::move(host);
    return host.status();
  }
  void StartHost(nlohmann::json config = nlohmann::json::object(),
                 nlohmann::json args = nlohmann::json::object(), PluginHost::Options options = {}) {
    ASSERT_EQ(MakeHost(std::move(config), std::move(args), std::move(options)), absl::OkStatus());
  }

  // Why a plug-in with this config cannot be used.
  absl::Status StartFailure(const nlohmann::json& config) {
    Mutex mu;
    CondVar changed;
    absl::Status broken;
    PluginHost::Options options;
    if (config.value("start", "") == "silent")
      options.start_timeout = options.version_timeout = absl::Milliseconds(300);
    options.on_broken = [&](absl::Status status) {
      MutexLock lock(&mu);
      broken = std::move(status);
      changed.NotifyAll();
    };
    const absl::Status made = MakeHost(config, nlohmann::json::object(), std::move(options));
    if (!made.ok()) return made;
    MutexLock lock(&mu);
    while (broken.ok()) changed.Wait(&mu);
    return broken;
  }

  // Puts another version of the plug-in in its place while it runs, or the first one again.
  void ChangeVersion(bool back = false) {
    if (is_server()) WriteVersion(back ? "1" : "2");
    else
      WritePlugin("conformance/program.py",
                  absl::StrCat(kScriptedProgram, back ? "" : "\n# changed\n"));
  }

  absl::StatusOr<std::vector<PluginResult>> Score(const std::vector<std::string>& completions,
                                                  absl::Duration timeout = absl::Seconds(30)) {
    std::vector<nlohmann::json> items;
    for (const std::string& completion : completions) items.push_back({{"completion", completion}});
    return host_->Score(items, timeout);
  }

  // The score of an answer. NaN, with the reason in error_, if it has none.
  double ScoreOf(const std::string& completion) {
    const auto results = Score({completion});
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return std::nan("");
    error_ = (*results)[0].error;
    reason_ = (*results)[0].reason;
    return (*results)[0].score.value_or(std::nan(""));
  }

  // So many instances were started. While a server starts again, some cannot be.
  void ExpectStarts(uint64_t starts) {
    if (is_server()) EXPECT_GE(host_->starts(), starts);
    else EXPECT_EQ(host_->starts(), starts);
  }

  // A path that a plug-in of this kind has not used.
  std::string Mark(const std::string& name) const {
    return testing_data::TempPath(absl::StrCat(is_server() ? "server-" : "program-", name));
  }

  void WriteVersion(const std::string& version) {
    SLUICE_CHECK(WriteFileAtomic(version_file_, version).ok());
  }

  // Starts the server, which starts again whenever it is killed.
  void StartServer() {
    version_file_ = WritePlugin("version", "1");
    const std::string socket = testing_data::TempPath("plugin.sock");
    const auto child =
        StartChild({.argv = {SLUICE_BIN_DIR "/scripted_server", socket}, .stderr_path = ""});
    ASSERT_EQ(child.status(), absl::OkStatus());
    server_ = *child;
    const auto servers = ReadPluginServers(
        WritePlugin("servers.yaml",
                    absl::StrCat("servers: [{name: scripted, address: \"unix:", socket, "\"}]")));
    ASSERT_EQ(servers.status(), absl::OkStatus());
    servers_ = *servers;
    ASSERT_TRUE(
        servers_.at("scripted")
            .channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(1)));
  }

  const PluginKind kind_;
  Child server_;
  std::string version_file_;
  PluginServers servers_;
  std::unique_ptr<PluginHost> host_;
  std::string error_, reason_;
};

}  // namespace sluice
