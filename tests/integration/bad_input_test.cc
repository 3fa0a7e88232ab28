#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/config/job_file.h"
#include "common/rpc/client.h"
#include "common/testing/data.h"
#include "sluice/registry/v1/registry.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// Mistakes of people and of other programs are reported with a code, a place and what to do, and
// nothing is lost by them.
namespace sluice::integration {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr char kDigits[] = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";

// Job files. --------------------------------------------------------------------------------------

class JobFileTest : public testing::Test {
 protected:
  // Runs `sluice config validate` on the example with one line changed.
  Finished Validate(const std::string& line, const std::string& instead) {
    std::string text = *ReadFile(kDigits);
    const size_t at = text.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    text.replace(at, line.size(), instead);
    const std::string file = cluster_.dir() + "/bad.yaml";
    EXPECT_EQ(WriteFileAtomic(file, text), absl::OkStatus());

    const auto finished = RunToEnd({.binary = "sluice",
                                    .args = {"config", "validate", file},
                                    .log = cluster_.dir() + "/validate.log"},
                                   kLong);
    EXPECT_EQ(finished.status(), absl::OkStatus());
    return finished.value_or(Finished{});
  }

  Cluster cluster_;  // Not started: only its folder is used.
};

TEST_F(JobFileTest, AMisspeltKeyIsNamedWithItsPlaceAndTheNearestKey) {
  const Finished finished = Validate("max_steps:", "max_stepz:");
  EXPECT_EQ(finished.exit, 2);
  EXPECT_THAT(finished.err,
              ContainsRegex("bad.yaml:[0-9]+:[0-9]+ SLUICE-CONFIG-0003 .*max_stepz.*max_steps"));
}

TEST_F(JobFileTest, AValueOfAnotherTypeIsNamedWithItsPlace) {
  const Finished finished = Validate("groups_per_step: 32", "groups_per_step: many");
  EXPECT_EQ(finished.exit, 2);
  EXPECT_THAT(finished.err, ContainsRegex("bad.yaml:[0-9]+:[0-9]+ SLUICE-CONFIG-0005 .*many"));
}

TEST_F(JobFileTest, FilesOfOtherHostsAreNotLookedForHere) {
  const std::string model = "model.init.config=/no/such/model";
  for (const bool remote : {false, true}) {
    std::vector<std::string> args = {"job",   "submit", kDigits,    "--dry-run",
                                     "--set", model,    "--server", "127.0.0.1:1"};
    if (remote) args.push_back("--remote-files");
    const auto finished =
        RunToEnd({.binary = "sluice", .args = args, .log = cluster_.dir() + "/submit.log"}, kLong);
    ASSERT_EQ(finished.status(), absl::OkStatus());
    EXPECT_EQ(finished->exit, remote ? 0 : 2) << finished->err;
  }
}

TEST_F(JobFileTest, AModelDirectoryThatIsNotThereIsNamedWithItsPlace) {
  const Finished finished = Validate("init: {config: digits, seed: 1}", "path: /no/such/model");
  EXPECT_EQ(finished.exit, 2);
  EXPECT_THAT(finished.err,
              ContainsRegex("bad.yaml:[0-9]+:[0-9]+ SLUICE-CONFIG-0012 .*/no/such/model"));
}

// Files that a job reads. -------------------------------------------------------------------------

class FilesTest : public testing::Test {
 protected:
  // The job fails with `message`.
  void ExpectFailure(std::vector<std::string> sets, const testing::Matcher<std::string>& message) {
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    const auto job = SubmitDigits(&cluster_, 3, std::move(sets));
    if (!job.ok()) {  // Some mistakes are found before the job is accepted.
      EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(job.status().message()), message);
      return;
    }

    const auto end = (*job)->AwaitEnd(kLong);
    ASSERT_EQ(end.status(), absl::OkStatus());
    EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED) << Text(*end);
    EXPECT_THAT(end->code(), testing::StartsWith("SLUICE-"));
    EXPECT_THAT(end->message(), message);

    const common::v1::Ledger& ledger = end->result().ledger();
    int64_t dropped = 0;
    for (const auto& [reason, count] : ledger.dropped()) dropped += count;
    EXPECT_EQ(ledger.accepted(), ledger.durable() + ledger.applied() + ledger.live() + dropped)
        << ledger.DebugString();
  }

  // Every command that asks about the job gets an answer, in both formats.
  void ExpectAnswers(const std::string& job) {
    const std::vector<std::vector<std::string>> commands = {{"job", "list"},
                                                            {"job", "describe", job},
                                                            {"job", "events", job},
                                                            {"why", job},
                                                            {"job", "watch", job}};
    for (std::vector<std::string> command : commands) {
      for (const char* output : {"table", "json"}) {
        std::vector<std::string> args = command;
        args.insert(args.end(), {"-o", output});
        const auto finished = cluster_.Sluice(args);
        ASSERT_EQ(finished.status(), absl::OkStatus());
        EXPECT_EQ(finished->exit, command[1] == "watch" ? 3 : 0)
            << absl::StrJoin(args, " ") << ": " << finished->err;
        EXPECT_TRUE(IsUtf8(finished->out)) << absl::StrJoin(args, " ");
      }
    }
  }

  // A copy of a good model with one file replaced.
  std::string ModelWith(const std::string& file, const std::string& bytes) {
    const std::string dir = cluster_.dir() + "/model";
    std::filesystem::create_directory(dir);
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors",
                             "tokenizer.json", "tokenizer_config.json"}) {
      EXPECT_EQ(WriteFileAtomic(absl::StrCat(dir, "/", name),
                                name == file ? bytes : *ReadFile(Model(name))),
                absl::OkStatus());
    }
    return dir;
  }

  static std::string Model(const std::string& file) {
    return testing_data::Path("models/qwen3-tiny/" + file);
  }

  // A job whose model has one file replaced fails with `message`.
  void ExpectModelFailure(const std::string& file, const std::string& bytes,
                          const testing::Matcher<std::string>& message) {
    const std::string dir = ModelWith(file, bytes);
    const std::string yaml = cluster_.dir() + "/job.yaml";
    std::string text = *ReadFile(kDigits);
    const std::string init = "init: {config: digits, seed: 1}";
    text.replace(text.find(init), init.size(), "path: " + dir);
    text.replace(text.find("digits/train.jsonl"), std::strlen("digits/train.jsonl"),
                 SLUICE_SOURCE_DIR "/configs/examples/digits/train.jsonl");
    ASSERT_EQ(WriteFileAtomic(yaml, text), absl::OkStatus());

    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    const auto job = Job::Submit(
        &cluster_, yaml,
        {"limits.max_steps=3", absl::StrCat("checkpoint.dir=", cluster_.dir(), "/checkpoints"),
         // This model's tokenizer makes more tokens of a prompt than that of the example.
         "data.order.max_prompt=64", "model.max_context=128"});
    if (!job.ok()) {  // Some mistakes are found before the job is accepted.
      EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(job.status().message()), message);
      return;
    }

    const auto end = (*job)->AwaitEnd(kLong);
    ASSERT_EQ(end.status(), absl::OkStatus());
    EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED) << Text(*end);
    EXPECT_THAT(end->code(), testing::StartsWith("SLUICE-"));
    EXPECT_THAT(end->message(), message);
  }

  // A safetensors file with this header and so many zero bytes of data.
  static std::string Safetensors(const std::string& header, size_t data_bytes) {
    const uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header +
           std::string(data_bytes, '\0');
  }

  Cluster cluster_;
};

TEST_F(FilesTest, ABrokenJsonLineFailsTheJobWithFileLineAndColumn) {
  const std::string file = cluster_.dir() + "/broken.jsonl";
  ASSERT_EQ(WriteFileAtomic(file, "{\"digits\": \"1234\"}\n{\"digits\": \"12\n"), absl::OkStatus());
  ExpectFailure({"data.train.0.path=" + file}, ContainsRegex("broken.jsonl:2:[0-9]+"));
}

TEST_F(FilesTest, BytesThatAreNotUtf8InARowFailTheJobAndLeaveTheControllerAnswering) {
  const std::string file = cluster_.dir() + "/bytes.jsonl";
  std::string text;  // The bad row is so far down that it is read only when the job starts.
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, "{\"digits\": \"4821\"}\n");
  ASSERT_EQ(WriteFileAtomic(file, text + "{\"digits\": \"\xff\xfe\"}\n"), absl::OkStatus());

  ExpectFailure({"data.train.0.path=" + file},
                ContainsRegex("bytes.jsonl:1001:[0-9]+: broken JSON.*UTF-8"));
  ExpectAnswers("digits");
}

TEST_F(FilesTest, APathThatIsNotUtf8IsRefusedWithItsPlaceAndAnotherClientsFailsItsJobAlone) {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const std::string file = cluster_.dir() + "/caf\xe9.jsonl";
  ASSERT_EQ(WriteFileAtomic(file, "{\"digits\": \"1234\"}\n"), absl::OkStatus());
  for (const char* key : {"data.train.0.path=", "model.path="}) {
    const auto refused = cluster_.Sluice({"job", "submit", kDigits, "--set", key + file});
    ASSERT_EQ(refused.status(), absl::OkStatus());
    EXPECT_EQ(refused->exit, 2);
    EXPECT_THAT(refused->err, HasSubstr("SLUICE-CONFIG-0002 byte 0xe9 is not UTF-8"));
  }

  const JobFile loaded = ReadJobFile(
      kDigits, {.sets = {absl::StrCat("checkpoint.dir=", cluster_.dir(), "/checkpoints")}});
  ASSERT_EQ(ProblemStatus(loaded.problems), absl::OkStatus());
  job::v1::SubmitRequest request;
  request.set_name(loaded.spec->name());
  request.set_hash(loaded.hash);
  *request.mutable_spec() = *loaded.spec;
  request.mutable_spec()->mutable_data()->mutable_train(0)->set_path(file);
  job::v1::SubmitResponse response;
  ASSERT_EQ(rpc::Call(cluster_.controller(), request, &response), absl::OkStatus());

  const auto wait = cluster_.Sluice({"job", "wait", "digits"});
  ASSERT_EQ(wait.status(), absl::OkStatus());
  EXPECT_EQ(wait->exit, 3);
  EXPECT_THAT(wait->err, HasSubstr("caf\xef\xbf\xbd.jsonl"));
  ExpectAnswers("digits");
}

TEST_F(FilesTest, AModelDirectoryWhoseFilesHoldBytesThatAreNotUtf8LeavesTheControllerAnswering) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const std::string dir = ModelWith("config.json",
                                    "{\"architectures\": [\"Caf\xe9"
                                    "ForCausalLM\"], \"model_type\": \"caf\xe9\"}");
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const JobFile loaded = ReadJobFile(
      kDigits, {.sets = {"model.init=none", "model.path=" + dir}, .check_paths = false});
  ASSERT_EQ(ProblemStatus(loaded.problems), absl::OkStatus());

  job::v1::SubmitRequest request;
  request.set_name(loaded.spec->name());
  request.set_hash(loaded.hash);
  *request.mutable_spec() = *loaded.spec;

  job::v1::SubmitResponse response;
  const absl::Status refused = rpc::Call(cluster_.controller(), request, &response);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("config.json"));
  EXPECT_TRUE(IsUtf8(refused.message()));

  const auto list = cluster_.Sluice({"job", "list"});
  ASSERT_EQ(list.status(), absl::OkStatus());
  EXPECT_EQ(list->exit, 0) << list->err;
}

TEST_F(FilesTest, BadRowsAreSkippedAndCountedWhereTheJobAsksForIt) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    absl::StrAppend(&text, i % 20 == 7 ? "{\"digits\": \"12" : "{\"digits\": \"4821\"}", "\n");
  const std::string file = cluster_.dir() + "/broken.jsonl";
  ASSERT_EQ(WriteFileAtomic(file, text), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const auto job =
      SubmitDigits(&cluster_, 3, {"data.train.0.path=" + file, "data.order.on_bad_row=skip"});
  ASSERT_EQ(job.status(), absl::OkStatus());

  ASSERT_EQ((*job)->AwaitEvent("rows_skipped", kLong), absl::OkStatus());
  const std::vector<common::v1::Event> events = (*job)->events();
  const auto told = std::find_if(events.begin(), events.end(),
                                 [](const auto& event) { return event.code() == "rows_skipped"; });
  EXPECT_THAT(
      told->message(),
      ContainsRegex("2 of 40 rows of data source digits are skipped, the first .*broken.jsonl:8:"));

  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

TEST_F(FilesTest, ARowThatNestsTooDeeplyFailsTheJobWithFileLineAndLimit) {
  const std::string file = cluster_.dir() + "/deep.jsonl";
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  ASSERT_EQ(WriteFileAtomic(file, "{\"digits\": \"1234\"}\n{\"digits\": " + deep + "}\n"),
            absl::OkStatus());
  ExpectFailure({"data.train.0.path=" + file},
                AllOf(HasSubstr("deep.jsonl:2:"), HasSubstr("the limit is 64")));
}

// Rows like those of the example, with a further column "gold". `gold` gives its value in row i.
std::string RowsWithGolds(int rows, const std::function<std::string(int)>& gold) {
  std::string text;
  for (int i = 0; i < rows; ++i)
    absl::StrAppend(&text, "{\"digits\": \"", 1000 + i, "\", \"gold\": ", gold(i), "}\n");
  return text;
}

TEST_F(FilesTest, GoldsThatAreAllNullFailTheJobBeforeATokenIsSampled) {
  const std::string file = cluster_.dir() + "/null.jsonl";
  ASSERT_EQ(WriteFileAtomic(file, RowsWithGolds(50, [](int) { return "null"; })), absl::OkStatus());
  ExpectFailure({"data.train.0.path=" + file, "data.train.0.answer=gold"},
                AllOf(HasSubstr("data source digits"), HasSubstr("null.jsonl:1:"),
                      HasSubstr("`answer` is null, wanted: a text or a number"),
                      HasSubstr("column \"gold\"")));
}

TEST_F(FilesTest, GoldsThatAreNumbersAreScoredAndRowsWithoutOneAreSetAsideAloud) {
  const std::string file = cluster_.dir() + "/golds.jsonl";
  const auto gold = [](int i) { return i % 2 == 1 ? std::string("null") : absl::StrCat(1000 + i); };
  ASSERT_EQ(WriteFileAtomic(file, RowsWithGolds(50, gold)), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());

  const auto job =
      SubmitDigits(&cluster_, 4, {"data.train.0.path=" + file, "data.train.0.answer=gold"});
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 4);

  std::map<std::string, std::vector<std::string>> said;  // By code.
  for (const common::v1::Event& event : (*job)->events()) {
    said[event.code()].push_back(event.message());
  }

  EXPECT_THAT(said["rows_unscorable"],
              testing::ElementsAre(AllOf(HasSubstr("data source digits: answers to 25 of 50 rows"),
                                         HasSubstr("golds.jsonl:2: "))));
  EXPECT_THAT(said["quarantined"], testing::Contains(AllOf(HasSubstr("cannot be scored (bad_row: "),
                                                           HasSubstr("`answer` is null"))));
}

TEST_F(FilesTest, AJobThatNeedsMoreMemoryThanTheQueueMayUseFailsAtOnceWithBothNumbers) {
  ExpectFailure({"rollout.group.size=4096", "rollout.group.min=4096", "queue.groups_per_step=4096",
                 "queue.keep.quota=100TiB"},
                AllOf(HasSubstr("B of the queue's memory"), HasSubstr("--memory")));
}

TEST_F(FilesTest, APromptLongerThanTheContextIsDroppedAndCounted) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    absl::StrAppend(&text, "{\"digits\": \"", i % 4 == 0 ? "123456789012" : "4821", "\"}\n");
  const std::string file = cluster_.dir() + "/long.jsonl";
  ASSERT_EQ(WriteFileAtomic(file, text), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster_, 12, {"data.train.0.path=" + file});
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_GT(end->result().ledger().dropped().at("prompt_too_long"), 0);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

TEST_F(FilesTest, ATruncatedModelFailsTheJobWithItsFile) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const std::string whole = *ReadFile(Model("model.safetensors"));
  ExpectModelFailure("model.safetensors", whole.substr(0, whole.size() / 2),
                     HasSubstr("model.safetensors"));
}

TEST_F(FilesTest, TensorsThatOverlapFailTheJobWithTheirFile) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  ExpectModelFailure(
      "model.safetensors",
      Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32",)"
                  R"("shape":[2],"data_offsets":[4,12]}})",
                  12),
      AllOf(HasSubstr("model.safetensors"), ContainsRegex("overlap|[4-8]")));
}

TEST_F(FilesTest, AHeaderThatClaimsATerabyteFailsTheJobWithItsLimit) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const uint64_t size = uint64_t{1} << 40;
  ExpectModelFailure("model.safetensors",
                     std::string(reinterpret_cast<const char*>(&size), sizeof size) + "{}",
                     AllOf(HasSubstr("model.safetensors"), HasSubstr("header")));
}

TEST_F(FilesTest, AnUnsupportedArchitectureFailsTheJobWithItsName) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  ExpectModelFailure(
      "config.json",
      R"({"architectures":["BertForMaskedLM"],"model_type":"bert","hidden_size":64})",
      AllOf(HasSubstr("Bert"), HasSubstr("config.json")));
}

// Daemons. ----------------------------------------------------------------------------------------

TEST(DaemonsTest, AUsedPortIsNamed) {
  Cluster cluster({.rollouts = 0, .rewards = 0, .trainers = 0});
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());

  const auto second =
      RunToEnd({.binary = "sluice-controller",
                .args = {"--insecure-loopback", "--listen", cluster.address("controller-0"),
                         "--data-dir", cluster.dir() + "/other"},
                .log = cluster.dir() + "/second.log"},
               kLong);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_EQ(second->exit, 1);
  EXPECT_THAT(second->err, AllOf(HasSubstr("error SLUICE-RPC-"),
                                 HasSubstr(cluster.address("controller-0")), HasSubstr("hint: ")));
}

TEST(DaemonsTest, ASecondDaemonOnOneDataDirectoryIsRefused) {
  Cluster cluster({.rollouts = 0, .rewards = 0, .trainers = 0});
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());
  const std::string dir = cluster.dir() + "/controller-0";

  const auto second =
      RunToEnd({.binary = "sluice-controller",
                .args = {"--insecure-loopback", "--listen", "127.0.0.1:0", "--data-dir", dir},
                .log = cluster.dir() + "/second.log"},
               kLong);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_EQ(second->exit, 1);
  EXPECT_THAT(second->err, AllOf(HasSubstr("error"), HasSubstr(dir),
                                 HasSubstr(absl::StrCat(cluster.process("controller-0").pid()))));
}

TEST(DaemonsTest, ADaemonOfAnotherProtocolIsRefusedAtRegister) {
  Cluster cluster({.rollouts = 0, .rewards = 0, .trainers = 0});
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());
  registry::v1::RegisterRequest request;
  request.set_daemon("rollout-7");
  request.set_role(rpc::v1::ROLE_ROLLOUT);
  request.set_boot(std::string(16, 'b'));
  request.set_protocol_min(2);
  request.set_protocol_max(3);

  registry::v1::RegisterResponse response;
  const absl::Status status = rpc::Call(cluster.controller(), request, &response);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(ReasonOf(status), "PROTOCOL");
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("2"), HasSubstr("1")));
}

// Ctrl-C. -----------------------------------------------------------------------------------------

// Reads lines up to the first that has `text`.
absl::Status ReadUntil(Process* process, const std::string& text) {
  std::vector<std::string> seen;
  while (true) {
    const auto line = process->ReadLine(kLong);
    if (!line.ok())
      return Annotate(line.status(),
                      absl::StrCat("no \"", text, "\" in: ", absl::StrJoin(seen, "\n")));
    if (line->find(text) != std::string::npos) return absl::OkStatus();
    seen.push_back(*line);
  }
}

TEST(CtrlCTest, WhileWatchingDetachesAndTheJobGoesOn) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, 100000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto watch = cluster.StartSluice({"job", "watch", (*job)->id()});
  ASSERT_EQ(watch.status(), absl::OkStatus());
  ASSERT_EQ(ReadUntil(watch->get(), "step "), absl::OkStatus());

  (*watch)->Signal(SIGINT);
  const auto rest = (*watch)->ReadAll(kLong);
  ASSERT_EQ(rest.status(), absl::OkStatus());
  EXPECT_THAT(*rest, HasSubstr("the job continues"));
  EXPECT_EQ((*watch)->Await(kLong).value_or(-1), 130);
  EXPECT_EQ((*job)->AwaitStep((*job)->steps() + 5, kLong), absl::OkStatus());

  const auto cancel = cluster.Sluice({"job", "cancel", (*job)->id()});
  ASSERT_EQ(cancel.status(), absl::OkStatus());
  EXPECT_EQ(cancel->exit, 0) << cancel->err;

  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_CANCELLED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

TEST(CtrlCTest, OnceInRunCancelsTheJobAndEndsItsDaemons) {
  Cluster cluster;  // Not started: `run` starts daemons of its own, in this folder.
  const std::string data = cluster.dir() + "/run";
  const auto run = Process::Start(
      {.binary = "sluice",
       .args = {"run", kDigits, "--data-dir", data, "-o", "json", "--set",
                "limits.max_steps=100000", "--set", "queue.groups_per_step=4", "--set",
                absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")}});
  ASSERT_EQ(run.status(), absl::OkStatus());
  ASSERT_EQ(ReadUntil(run->get(), "step "), absl::OkStatus());

  (*run)->Signal(SIGINT);
  const auto rest =
      (*run)->ReadAll(kLong);  // Until the last process that holds the pipe has ended.
  ASSERT_EQ(rest.status(), absl::OkStatus());
  EXPECT_THAT(*rest, AllOf(HasSubstr("cancelling the job"), HasSubstr("\"state\": \"CANCELLED\"")));
  EXPECT_EQ((*run)->Await(kLong).value_or(-1), 130);
}

}  // namespace
}  // namespace sluice::integration
