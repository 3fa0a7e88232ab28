// Jobs whose answers functions of their users score, as people write them for verl and TRL.
#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "sluice/plugin/v1/plugin.grpc.pb.h"
#include "tests/common/plugins/folder.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

using testing::HasSubstr;

// Each process leaves a file with its id in the folder `pids` beside it.
constexpr char kVerl[] = R"py(
import os

pids = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pids")
os.makedirs(pids, exist_ok=True)
open(os.path.join(pids, str(os.getpid())), "w").close()

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "digits", data_source
    wanted = ground_truth[::-1]
    right = sum(a == b for a, b in zip(solution_str, wanted))
    return {"score": right / max(len(solution_str), 4), "acc": solution_str == wanted}
)py";

constexpr char kTrl[] = R"py(
def rank(completions, answer, **kwargs):
    assert len(completions) == 4, "a whole group"
    lengths = [len(completion) for completion in completions]
    return [sum(other < length for other in lengths) / 3 for length in lengths]
)py";

class PluginTest : public testing::Test {
 protected:
  void StartFleet(const std::vector<std::string>& flags = {"--plugins", "unconfined"}) {
    cluster_ = std::make_unique<Cluster>(ClusterOptions{.args = {{"reward-0", flags}}});
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
    ASSERT_EQ(MakeDirs(cluster_->dir() + "/rewards"), absl::OkStatus());
  }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(cluster_->dir(), "/rewards/", name);
    EXPECT_EQ(WriteFileAtomic(path, text), absl::OkStatus());
    return path;
  }

  void SubmitJob(int steps, const std::string& rewards) {
    auto job = SubmitDigits(cluster_.get(), steps, {"reward.rewards=" + rewards});
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
  }

  // The job trains all its steps, and loses no answer.
  void ExpectSuccess() {
    const auto end = job_->AwaitEnd(kLong);
    ASSERT_EQ(end.status(), absl::OkStatus());
    EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
    EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus()) << Text(*end);
    for (const auto& [reason, count] : end->result().ledger().dropped()) {
      EXPECT_TRUE(reason != "unscorable" || count == 0) << Text(*end);
    }
  }

  // The processes of kVerl that have started so far.
  std::set<pid_t> Processes() const {
    std::set<pid_t> pids;
    const std::string folder = cluster_->dir() + "/rewards/pids";
    if (!PathExists(folder)) return pids;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      pid_t pid = 0;
      if (absl::SimpleAtoi(entry.path().filename().string(), &pid)) pids.insert(pid);
    }
    return pids;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Job> job_;
};

// Of every answer to held-out rows, too: the last version's score is the one that the function
// gives to the answers of its checkpoint.
TEST_F(PluginTest, EvaluationsAreScoredByPluginsWhileTheirDaemonDies) {
  StartFleet();
  const std::string verl = Write("verl.py", kVerl);
  const std::string rows = SLUICE_SOURCE_DIR "/configs/examples/digits/heldout.jsonl";
  auto job =
      SubmitDigits(cluster_.get(), 12,
                   {absl::StrCat("reward.rewards=[{name: r, verifier: plugin, args: {verl: \"",
                                 verl, ":compute_score\"}}]"),
                    "eval.every_steps=5", "checkpoint.keep_last=10",
                    absl::StrCat("eval.datasets=[{name: digits, path: ", rows,
                                 ", prompt: digits, answer: digits, format: \"{digits}=\"}]")});
  ASSERT_EQ(job.status(), absl::OkStatus());
  job_ = *std::move(job);
  ASSERT_EQ(job_->AwaitStep(6, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("reward-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("reward-0"), absl::OkStatus());

  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_GE(end->result().eval().versions(), 3) << "versions 0, 5 and 12 at least";

  const auto alone = cluster_->Sluice({"eval",
                                       end->result().checkpoint(),
                                       "--data",
                                       rows,
                                       "--prompt",
                                       "digits",
                                       "--answer",
                                       "digits",
                                       "--format",
                                       "{digits}=",
                                       "--chat-template",
                                       "none",
                                       "--verl",
                                       verl + ":compute_score",
                                       "--source",
                                       "digits",
                                       "--max-tokens",
                                       "7",
                                       "-o",
                                       "json"});
  ASSERT_EQ(alone.status(), absl::OkStatus());
  ASSERT_EQ(alone->exit, 0) << alone->err;
  const nlohmann::json result = nlohmann::json::parse(alone->out);
  EXPECT_EQ(result["score_mean"], end->result().eval().last());
  EXPECT_EQ(result["unscorable"], 0);
}

TEST_F(PluginTest, AJobTrainsOnAVerlFunctionWhoseProcessesAreKilled) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  const std::string file = Write("mine.py", kVerl);
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/30, absl::StrCat("[{name: mine, verifier: plugin, timeout: 30s, args: {verl: ",
                                 file, ":compute_score, low: 0, high: 1}}]")));
  std::set<pid_t> killed;
  for (int64_t step : {2, 6, 10}) {
    ASSERT_EQ(job_->AwaitStep(step, kLong), absl::OkStatus());
    for (const pid_t pid : Processes()) {
      if (killed.insert(pid).second) kill(pid, SIGKILL);
    }
  }
  ExpectSuccess();
  EXPECT_GT(Processes().size(), 4u) << "killed processes are replaced";
  for (const job::v1::StepReport& report : job_->reports()) {
    EXPECT_GE(report.values().at("reward_mean"), 0);
    EXPECT_LE(report.values().at("reward_mean"), 1);
  }
}

TEST_F(PluginTest, AJobTrainsOnATrlFunctionThatComparesTheAnswersOfAGroup) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  const std::string file = Write("rank.py", kTrl);
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/4,
      absl::StrCat("[{name: rank, verifier: plugin, timeout: 30s, granularity: group, args: "
                   "{trl: ",
                   file,
                   ":rank}}, {name: reversed, verifier: text, args: {property: reversed}}]")));
  ExpectSuccess();
}

// Without a flag, plug-ins run in sandboxes, which show them their files.
TEST_F(PluginTest, AJobTrainsOnAFunctionThatRunsInASandbox) {
  ASSERT_NO_FATAL_FAILURE(StartFleet({}));
  for (const char* const folder : {"", "/rewards"})
    ASSERT_EQ(chmod((cluster_->dir() + folder).c_str(), 0755), 0);
  Write("words.py", "def length(text):\n    return len(text)\n");
  const std::string file = Write("mine.py", R"py(
import os
import words

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    try:
        os.listdir(os.path.dirname(os.path.dirname(__file__)) + "/controller-0")
        return 7.0  # It sees what it must not see.
    except OSError:
        return words.length(solution_str) / 100
)py");
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/4, absl::StrCat("[{name: mine, verifier: plugin, timeout: 30s, args: {verl: ", file,
                                ":compute_score, low: 0, high: 1}}]")));
  ExpectSuccess();
  ASSERT_FALSE(job_->reports().empty());
  EXPECT_GT(job_->reports().back().values().at("reward_mean"), 0);
}

// Gives the share of right digits, as kVerl does.
class DigitsServer final : public plugin::v1::RewardPlugin::Service {
 public:
  explicit DigitsServer(const std::string& address) : address_(address) { Start(); }
  ~DigitsServer() override { Stop(); }
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_ = nullptr;
  }

 private:
  grpc::Status Describe(grpc::ServerContext*, const plugin::v1::DescribeRequest*,
                        plugin::v1::DescribeResponse* response) override {
    response->set_name("digits");
    response->set_version("1");
    response->set_granularity(common::v1::GRANULARITY_TRAJECTORY);
    response->set_max_in_flight(8);
    return grpc::Status::OK;
  }
  grpc::Status Score(grpc::ServerContext*,
                     grpc::ServerReaderWriter<plugin::v1::ScoreResponse, plugin::v1::ScoreRequest>*
                         stream) override {
    plugin::v1::ScoreRequest request;
    while (stream->Read(&request)) {
      plugin::v1::ScoreResponse response;
      response.set_id(request.id());
      response.set_version("1");
      for (const plugin::v1::ScoreItem& item : request.items()) {
        const std::string gold = nlohmann::json::parse(item.ground_truth());
        const size_t length = std::min(gold.size(), item.completion().size());
        size_t right = 0;
        for (size_t i = 0; i < length; ++i) right += item.completion()[i] == gold.rbegin()[i];
        response.add_results()->set_score(static_cast<double>(right) / gold.size());
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  const std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(PluginTest, AJobTrainsAndIsEvaluatedByAServerThatComesLateAndStartsAgain) {
  const std::string address = absl::StrCat("unix:", testing_data::TempPath("digits.sock"));
  const std::string servers = WritePlugin(
      "servers.yaml", absl::StrCat("servers: [{name: digits, address: \"", address, "\"}]"));
  ASSERT_NO_FATAL_FAILURE(StartFleet({"--plugin-servers", servers}));
  auto job = SubmitDigits(cluster_.get(), 12,
                          {"reward.rewards=[{name: r, verifier: plugin, args: {grpc: digits}}]",
                           "eval.every_steps=5", "checkpoint.keep_last=10",
                           "eval.datasets=[{name: digits, path: " SLUICE_SOURCE_DIR
                           "/configs/examples/digits/heldout.jsonl, prompt: digits, answer: "
                           "digits, format: \"{digits}=\"}]"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  job_ = *std::move(job);
  std::string why;
  for (const absl::Time end = absl::Now() + kLong;
       why.find("it cannot be reached") == std::string::npos && absl::Now() < end;)
    why = cluster_->Sluice({"why", job_->id()})->out;
  EXPECT_THAT(why, HasSubstr("plug-in server digits at " + address + ": it cannot be reached"));

  DigitsServer server(address);
  ASSERT_EQ(job_->AwaitStep(3, kLong), absl::OkStatus());
  server.Stop();
  server.Start();
  ASSERT_NO_FATAL_FAILURE(ExpectSuccess());
  EXPECT_GE(job_->status().result().eval().versions(), 2) << "versions 0 and 12 at least";
  EXPECT_GT(job_->reports().back().values().at("reward_mean"), 0);
}

// What the user did wrong ends the job with the reason, and not in silence.
TEST_F(PluginTest, AJobWhosePluginCannotStartFailsAndSaysWhy) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  const std::string file = Write("broken.py", "import no_such_module\n");
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/4,
      absl::StrCat("[{name: mine, verifier: plugin, args: {verl: ", file, ":compute_score}}]")));
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED);
  EXPECT_THAT(end->message(), HasSubstr("No module named 'no_such_module'")) << Text(*end);
}

TEST_F(PluginTest, AFleetRunsNoPluginsUnlessItsOperatorSaysSo) {
  ASSERT_NO_FATAL_FAILURE(StartFleet({"--plugins", "off"}));
  const std::string file = Write("mine.py", kVerl);
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/4,
      absl::StrCat("[{name: mine, verifier: plugin, args: {verl: ", file, ":compute_score}}]")));
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED);
  EXPECT_THAT(end->message(), HasSubstr("runs no plug-ins")) << Text(*end);
  EXPECT_TRUE(Processes().empty());
}

// Fails on rows whose digits begin with 7, about a tenth of all, unless it is mended.
std::string FailsOnSevens(bool mended, double self_test = 1) {
  return absl::StrCat(R"py(
from sluice_reward import reward

@reward(self_test=[({"completion": "1", "ground_truth": "1"}, )py",
                      self_test, R"py()])
def reversed_digits(item):
    gold, text = item["ground_truth"], item["completion"]
    if gold.startswith("7") and not )py",
                      mended ? "True" : "False", R"py(:
        raise ValueError("cannot read a seven")
    return sum(a == b for a, b in zip(text, gold[::-1])) / max(len(text), len(gold))
)py");
}

class RewardCommandsTest : public PluginTest {
 protected:
  // What a `sluice reward` command of the job prints with -o json.
  nlohmann::json Reward(const std::string& command, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"reward", command, job_->id()};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), {"-o", "json"});
    const auto finished = cluster_->Sluice(args);
    EXPECT_EQ(finished.status(), absl::OkStatus());
    const nlohmann::json printed = nlohmann::json::parse(finished->out, nullptr, false);
    EXPECT_FALSE(printed.is_discarded()) << finished->out << finished->err;
    return printed;
  }
  // Asks for dead letters until one, or that of the id, has a prompt of which this is said, and
  // returns that letter.
  nlohmann::json AwaitDead(const std::string& prompt, const std::string& id = "") {
    for (const absl::Time end = absl::Now() + kLong; absl::Now() < end;) {
      const nlohmann::json dead = Reward("dead");
      for (const nlohmann::json& letter : dead["dead"]) {
        if (letter["prompt"] == prompt && (id.empty() || letter["id"] == id)) return letter;
      }
    }
    ADD_FAILURE() << "no dead letter whose prompt is " << prompt;
    return {};
  }
};

TEST_F(RewardCommandsTest, ARewardIsMendedWhileTheJobRunsAndWhatItFailedOnIsDrawnAgain) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  const std::string file = Write("sevens.py", FailsOnSevens(/*mended=*/false));
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/1'000'000,
      absl::StrCat("[{name: sevens, verifier: plugin, timeout: 30s, args: {native: ", file,
                   "}}]")));

  // The cause is listed. A file that fails its self-test changes nothing.
  const nlohmann::json letter = AwaitDead("quarantined");
  EXPECT_EQ(letter["why"], "unscorable");
  EXPECT_THAT(letter["cause"].get<std::string>(), HasSubstr("cannot read a seven"));
  Write("sevens.py", FailsOnSevens(/*mended=*/true, /*self_test=*/0.5));
  ASSERT_EQ(job_->AwaitEvent("reward_reload_failed", kLong), absl::OkStatus());
  EXPECT_EQ(Reward("lineage")["generations"].size(), 1u);

  Write("sevens.py", FailsOnSevens(/*mended=*/true));
  ASSERT_EQ(job_->AwaitEvent("reward_reloaded", kLong), absl::OkStatus());
  const std::string id = letter["id"].get<std::string>();
  EXPECT_GT(Reward("retry", {id, "--cause", "a seven"})["prompts"].get<int>(), 0);
  EXPECT_EQ(AwaitDead("scored since", id)["id"], id);

  // Steps were trained on two generations, and a group on one: the queue refuses a score of another
  // generation than the group's, which would leave it without a score.
  const int64_t now = job_->steps();
  ASSERT_EQ(job_->AwaitStep(now + 8, kLong), absl::OkStatus());
  const nlohmann::json lineage = Reward("lineage");
  ASSERT_EQ(lineage["generations"].size(), 2u);
  const nlohmann::json &old = lineage["generations"][0], &fresh = lineage["generations"][1];
  EXPECT_EQ(old["steps"][0][0], 0);
  EXPECT_EQ(old["state"], "past");
  EXPECT_EQ(fresh["state"], "in_use");
  EXPECT_NE(old["rewards"]["sevens"], fresh["rewards"]["sevens"]);
  EXPECT_GT(fresh["steps"].back()[1].get<int64_t>(), old["steps"].back()[1].get<int64_t>());
  const std::string before = old["generation"].get<std::string>(),
                    after = fresh["generation"].get<std::string>();
  EXPECT_EQ(Reward("lineage", {"--gen", before})["generations"].size(), 1u);
  EXPECT_EQ(Reward("show")["daemons"][0]["generation"], after);

  // Nothing is left that the old one scored. What the new one scored and no batch has is redone.
  EXPECT_EQ(Reward("rescore", {"--gen", before})["groups"], 0);
  EXPECT_TRUE(Reward("rescore", {"--gen", after}).contains("groups"));
  ASSERT_EQ(job_->AwaitStep(job_->steps() + 4, kLong), absl::OkStatus());

  ASSERT_EQ(cluster_->Sluice({"job", "cancel", job_->id()}).status(), absl::OkStatus());
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus()) << Text(*end);
}

TEST_F(RewardCommandsTest, ACandidateIsComparedAndChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartFleet());
  const std::string file = Write("half.py", R"py(
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if ground_truth.startswith("7"):
        raise ValueError("cannot read a seven")
    return 0.5
)py");
  ASSERT_NO_FATAL_FAILURE(SubmitJob(
      /*steps=*/20,
      absl::StrCat("[{name: reversed, verifier: text, args: {property: reversed}}, {name: half, "
                   "verifier: plugin, shadow: reversed, timeout: 30s, args: {verl: ",
                   file, ":compute_score}}]")));
  ASSERT_EQ(job_->AwaitEvent("shadow_compared", kLong), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(ExpectSuccess());
  EXPECT_GT(job_->reports().back().values().at("reward_std"), 0) << "it is the text's reward";
}

}  // namespace
}  // namespace sluice::integration
