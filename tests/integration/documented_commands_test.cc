// Runs every command that stands in a block of code of the READMEs and runbooks, or as an example
// in --help, as a person would type it, against a fleet of `sluice dev up`. The tables below say
// which commands cannot run here and why, and what is changed in the others: smaller jobs, free
// ports, files that exist. A command within a sentence may be only a part of one, so it is not run:
// it must name a command and options that exist.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "tests/integration/harness/process.h"
#include "tools/sluice/app.h"

namespace sluice::integration {
namespace {

// A rule for the commands that begin with `start`. Of several, the longest holds.
struct Rule {
  const char* start;
  const char* value;
};

// Commands that do not run here, and why.
constexpr Rule kNotRun[] = {
    {"tools/demo.sh", "builds, and trains for a minute; the set-up of this test is the same"},
    {"tools/test.sh", "is what runs this test"},
    {"kubectl ", "needs a cluster: deploy_cluster_test"},
    {"deploy/k8s/make-secrets.sh ",
     "needs a cluster: deploy_cluster_test, and deploy_test runs it"},
    {"for t in ", "builds images, which takes minutes: deploy/try.sh"},
    {"export SLUICE_TLS=~/sluice-ca", "needs a port-forward to a cluster"},
    {"SLUICE_TLS=~/sluice-ca", "needs a port-forward to a cluster"},
    {"curl ", "the port is not free on every host: http_test calls the same"},
    {"sluice job submit job.yaml --set model.path=out", "the job of this test has no model.path"},
    {"sluice meta restore jobs.backup --store ",
     "needs a Redis with TLS: the tests of `meta` have"},
    {"sluice reward score configs/examples/rewards/answers.jsonl --grpc",
     "needs a server, whose packages few machines have: plugins_test starts it where it can"},
    {"sluice completion fish | source", "is for fish: completion_test runs it there"},
};

// What is added to a command.
constexpr Rule kAppended[] = {
    {"sluice dev up", " --free-ports"},
    {"sluice run configs/examples/digits.yaml", " --set limits.max_steps=2"},
    {"sluice job submit configs/examples/digits.yaml",
     " --set limits.wall=none --set limits.max_steps=1000000 --set checkpoint.every_steps=2 --set "
     "queue.groups_per_step=4"},
    {"sluice job submit configs/examples/digits.yaml --set eval.every_steps=50",
     " --set name=evaluated --set limits.max_steps=2 --set eval.every_steps=1 --set "
     "checkpoint.every_steps=1"},
    {"sluice job submit job.yaml --remote-files", " --set name=remote"},
    {"sluice dev kill queue --signal STOP", "; sluice dev kill queue --signal CONT"},
};

// What comes before a command.
constexpr Rule kBefore[] = {
    {"sluice job export ", "rm -rf out; "},
    {"sluice pki init ", "rm -rf ca; "},
    {"sluice pki issue queue queue-0 --ca ca", "[ -d ca ] || sluice pki init ca; "},
    {"sluice pki issue submitter anna --ca ~/sluice-ca/ca",
     "[ -d ~/sluice-ca/ca ] || sluice pki init ~/sluice-ca/ca; "},
    {"sluice ckpt init ", "rm -rf model; "},
    {"sluice bug-report ", "rm -f report.tar.gz; "},
    {"sluice completion zsh", "mkdir -p ~/.zsh; "},
    {"sluice meta backup ", "rm -f jobs.backup; "},
    {"sluice job retry digits", "sluice job wait digits --for CANCELLED --timeout 2m; "},
    {"sluice job delete digits --yes",
     "sluice job cancel digits --now; sluice job wait digits --for CANCELLED --timeout 2m; "},
    // A file of its own, so that other commands still find the fleet.
    {"sluice context ",
     "export XDG_CONFIG_HOME=$PWD/contexts; sluice context set prod --server "
     "127.0.0.1:7400; sluice context set here --server 127.0.0.1:7400; "},
    // Ctrl-C ends it.
    {"sluice job watch digits", "timeout --preserve-status -s INT 2 "},
    {"sluice job logs digits --follow", "timeout --preserve-status -s INT 2 "},
    {"sluice job submit configs/examples/digits.yaml --watch",
     "timeout --preserve-status -s INT 2 "},
};

// Texts that stand for something that only the reader knows.
constexpr Rule kReplaced[] = {
    {"build/digits/digits-5e3a90c1", "$(ls -d build/digits/digits-* | head -1)"},
    {"checkpoints/digits-6dbce5f1", "$(ls -d build/digits/digits-* | head -1)"},
    {"/models/qwen3-tiny", "model"},
    {"/tmp/model", "model"},
    {"> job.yaml", "> defaults.yaml"},
    {"DATA_DIR", "stopped/queue-0"},
    {"/var/lib/sluice/queue-0", "stopped/queue-0"},
    {"job export digits --best", "job export evaluated --best"},
    {"job wait digits --for SUCCEEDED", "job wait evaluated --for SUCCEEDED"},
    {"rollout-1", "rollout-0"},
    {"digits@1200", "digits@$(($(sluice job steps digits --last 1 -o name) + 1))"},
    // Its checkpoints are of even versions.
    {"weights rollback digits 40", "weights rollback digits 1"},
    {"--gen 7c1f09aa", "--gen $(sluice reward lineage digits -o name | head -n 1)"},
    {"queue peek digits 1:2f", "queue peek digits $(sluice queue peek digits -o name | head -n 1)"},
};

// Exit codes besides 0.
constexpr Rule kExits[] = {
    {"sluice job watch digits", "130"},
    {"sluice job logs digits --follow", "130"},
    {"sluice job submit configs/examples/digits.yaml --watch", "130"},
    {"sluice doctor", "1"},                  // The host may have a fault.
    {"sluice eval digits@1200", "5"},        // The job goes on, and forgets old versions
    {"sluice queue peek digits 1:2f", "5"},  // and old groups.
    {"sluice weights rollback digits 40", "5"},
    {"sluice reward retry digits --cause", "5"},  // Every answer has its score,
    {"sluice reward retry digits 1:2f", "5"},
    {"sluice reward reload digits", "1"},  // and there is no plug-in.
    {"sluice job delete digits", "2"},     // Nobody can be asked.
    {"sluice job delete digits --yes", "0"},
};

// Commands run in this order, those of one line in the order in which they are read.
const std::vector<std::vector<const char*>>& Phases() {
  static const auto* const phases = new std::vector<std::vector<const char*>>{
      {"sluice run ", "sluice config ", "sluice plan ", "sluice ckpt init ", "sluice pki ",
       "sluice context "},
      // Before a job that goes on to write and remove checkpoints.
      {"sluice ckpt verify "},
      {"sluice dev up"},
      {"sluice job submit "},
      {},  // All others.
      {"sluice job export "},
      {"sluice eval "},
      {"sluice job set "},
      {"sluice job pause "},
      {"sluice job wait digits --for PAUSED"},
      {"sluice job resume "},
      {"sluice job cancel "},
      {"sluice job retry "},
      {"sluice job delete "},
      {"sluice dev kill "},
      {"sluice dev down"}};
  return *phases;
}

size_t PhaseOf(const std::string& command) {
  size_t others = 0;
  for (size_t i = 0; i < Phases().size(); ++i) {
    if (Phases()[i].empty()) others = i;
    for (const char* start : Phases()[i]) {
      if (absl::StartsWith(command, start)) return i;
    }
  }
  return others;
}

// The rules that some command has used.
std::set<const Rule*>& UsedRules() {
  static auto* const used = new std::set<const Rule*>();
  return *used;
}

template <size_t n>
const Rule* FindRule(const Rule (&rules)[n], const std::string& command) {
  const Rule* longest = nullptr;
  for (const Rule& rule : rules) {
    if (absl::StartsWith(command, rule.start) &&
        (longest == nullptr || strlen(rule.start) > strlen(longest->start)))
      longest = &rule;
  }
  if (longest != nullptr) UsedRules().insert(longest);
  return longest;
}

template <size_t n>
std::string RuleValue(const Rule (&rules)[n], const std::string& command) {
  const Rule* const rule = FindRule(rules, command);
  return rule == nullptr ? "" : rule->value;
}

struct Documented {
  std::string command;
  std::string where;
};

// Without the comment behind it, which begins after two spaces.
std::string StripComment(absl::string_view line) {
  const size_t comment = line.find("  #");
  return std::string(absl::StripAsciiWhitespace(line.substr(0, comment)));
}

bool IsCommand(absl::string_view line) {
  for (const char* start : {"sluice ", "kubectl ", "tools/", "deploy/", "export ", "for ",
                            "SLUICE_", "curl ", "source "}) {
    if (absl::StartsWith(line, start)) return true;
  }
  return false;
}

// The command lines in the blocks of code of a Markdown file: those with a prompt, and in blocks
// without any prompt all that look like commands.
void AddFromMarkdown(const std::string& path, std::vector<Documented>* found) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  ASSERT_TRUE(text.ok()) << text.status();
  const std::string where = path.substr(sizeof(SLUICE_SOURCE_DIR));
  bool code = false;
  for (absl::string_view line : absl::StrSplit(absl::StrReplaceAll(*text, {{"\\\n", " "}}), '\n')) {
    if (absl::StartsWith(line, "```")) {
      code = !code;
      continue;
    }
    if (!code) continue;
    absl::ConsumePrefix(&line, "$ ");
    absl::ConsumePrefix(&line, "build/release/bin/");
    if (IsCommand(line)) found->push_back({StripComment(line), where});
  }
}

// The parts of commands within the sentences of a Markdown file: `sluice job list`.
void AddFromSentences(const std::string& path, std::vector<Documented>* found) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  ASSERT_TRUE(text.ok()) << text.status();
  bool code = false;
  std::string sentences;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (absl::StartsWith(line, "```")) code = !code;
    else if (!code) absl::StrAppend(&sentences, line, " ");
  }
  // Every second part is between two backquotes.
  const std::vector<std::string> parts = absl::StrSplit(sentences, '`');
  for (size_t i = 1; i < parts.size(); i += 2) {
    if (absl::StartsWith(parts[i], "sluice "))
      found->push_back({parts[i], path.substr(sizeof(SLUICE_SOURCE_DIR))});
  }
}

// The examples in the help of `app` and of its subcommands.
void AddFromHelp(CLI::App* app, std::vector<Documented>* found) {
  const std::string text = absl::StrReplaceAll(app->get_footer(), {{"\\\n", " "}, {" && ", "\n"}});
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string command = StripComment(line);
    if (IsCommand(command)) found->push_back({command, app->get_name() + " --help"});
  }
  for (CLI::App* sub : app->get_subcommands({})) AddFromHelp(sub, found);
}

// The Markdown files that tell people which commands to type.
std::vector<std::string> MarkdownFiles() {
  std::vector<std::string> files;
  for (const char* folder : {"", "deploy", "services"}) {
    const std::string path = absl::StrCat(SLUICE_SOURCE_DIR "/", folder);
    if (*folder == '\0') {
      files.push_back(absl::StrCat(path, "README.md"));
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (absl::EndsWith(entry.path().string(), ".md")) files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin() + 1, files.end());
  return files;
}

std::vector<Documented> AllCommands() {
  std::vector<Documented> found;
  for (const std::string& file : MarkdownFiles()) AddFromMarkdown(file, &found);
  cli::SluiceApp app;
  AddFromHelp(&app.parser(), &found);
  return found;
}

// The user's folder and files are in a folder of the test.
class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() : dir_(::testing::TempDir() + "commands-" + std::to_string(getpid())) {
    namespace fs = std::filesystem;
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    fs::copy(SLUICE_SOURCE_DIR "/configs", dir_ + "/configs", fs::copy_options::recursive);
    EXPECT_TRUE(WriteFileAtomic(dir_ + "/test.jsonl",
                                "{\"prompt\": \"1234=\", \"question\": \"1234=\", \"answer\": "
                                "\"4321\"}\n")
                    .ok());
  }

  ~CommandsTest() override {
    (void)Run("sluice dev down");
    if (!HasFailure()) (void)RemoveTree(dir_);
  }

  Finished Run(const std::string& command) {
    const absl::StatusOr<Finished> done =
        RunToEnd({.binary = "/bin/bash",
                  .args = {"-c", command},
                  .env = {{"HOME", dir_},
                          {"PATH", absl::StrCat(SLUICE_BIN_DIR, ":", getenv("PATH"))},
                          {"XDG_STATE_HOME", dir_ + "/state"},
                          {"XDG_CONFIG_HOME", dir_ + "/config"},
                          {"SLUICE_CONTEXT", ""},
                          {"SLUICE_DATA_DIR", ""},
                          {"SLUICE_SERVER", ""},
                          {"SLUICE_TLS", ""}},
                  .log = absl::StrCat(dir_, "/stderr-", commands_++, ".log"),
                  .working_dir = dir_},
                 kLong);
    EXPECT_EQ(done.status(), absl::OkStatus()) << command;
    return done.value_or(Finished{.exit = -1});
  }

  const std::string dir_;
  int commands_ = 0;
};

TEST_F(CommandsTest, EachRunsAsItIsWritten) {
  std::vector<Documented> commands = AllCommands();
  std::stable_sort(commands.begin(), commands.end(), [](const Documented& a, const Documented& b) {
    return PhaseOf(a.command) < PhaseOf(b.command);
  });

  // The files of a person who has used Sluice before: a job file, and the data of a stopped queue.
  ASSERT_EQ(Run("sed 's/^name: digits/name: job/; s/max_steps: 1500/max_steps: 2/; s/warmup: "
                "10/warmup: 0/; s/config: digits/config: configs\\/examples\\/digits/; s/path: "
                "digits/path: configs\\/examples\\/digits/; s/groups_per_step: 32/groups_per_step: "
                "4/; s/..\\/..\\/build/build/' configs/examples/digits.yaml > job.yaml")
                .exit,
            0);
  const Finished stopped = Run("sluice run job.yaml -q --data-dir stopped");
  ASSERT_EQ(stopped.exit, 0) << stopped.err;

  int ran = 0;
  std::set<std::pair<size_t, std::string>> typed_before;  // In the same phase.
  for (const Documented& documented : commands) {
    const std::string& command = documented.command;
    if (FindRule(kNotRun, command) != nullptr) continue;
    std::string typed =
        absl::StrCat(RuleValue(kBefore, command), command, RuleValue(kAppended, command));
    for (const Rule& rule : kReplaced) {
      if (absl::StrContains(typed, rule.start)) UsedRules().insert(&rule);
      typed = absl::StrReplaceAll(typed, {{rule.start, rule.value}});
    }

    if (!typed_before.emplace(PhaseOf(command), typed).second) continue;
    const Finished done = Run(typed);
    ++ran;
    const std::string also = RuleValue(kExits, command);
    EXPECT_TRUE(done.exit == 0 || absl::StrCat(done.exit) == also)
        << documented.where << ": " << command << "\nran as: " << typed << "\nexit code "
        << done.exit << "\n"
        << done.out << done.err;
  }
  EXPECT_GE(ran, 70);
}

// All texts of the files below `folder`.
std::string ReadTree(const std::string& folder) {
  std::string text;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) absl::StrAppend(&text, ReadFile(entry.path()).value_or(""), "\n");
  }
  return text;
}

TEST_F(CommandsTest, ABugReportHasWhatExplainsAProblemAndNoSecret) {
  const std::vector<std::string> canaries = {
      "canary-of-variable", "canary-of-password", "canary-of-url",     "canary-of-key",
      "canary-of-bearer",   "canary-of-prompt",   "canary-of-log-key", "canary-of-excerpt"};
  const Finished up = Run("sluice dev up --free-ports --rollouts 1");
  ASSERT_EQ(up.exit, 0) << up.err;
  // A row that the job cannot use, and lines of a log that no daemon should write.
  ASSERT_EQ(Run("echo '{\"digits\": \"canary-of-prompt\"}' >> configs/examples/digits/train.jsonl; "
                "cat >> state/sluice/logs/queue-0.log <<'END'\n"
                "{\"level\":\"info\",\"event\":\"x\",\"redis_password\":\"canary-of-password\","
                "\"url\":\"rediss://user:canary-of-url@redis:6379\"}\n"
                "-----BEGIN PRIVATE KEY-----\ncanary-of-key\n-----END PRIVATE KEY-----\n"
                "Authorization: Bearer canary-of-bearer\n"
                "{\"api_key\":\"canary-of-log-key\"}\n"
                "{\"message\":\"the prompt is \\\"Anna has three apples: canary-of-excerpt\\\"\"}\n"
                "END")
                .exit,
            0);
  const Finished submitted =
      Run("sluice job submit configs/examples/digits.yaml --set limits.wall=none --set "
          "limits.max_steps=1000000 && sluice job wait digits --for RUNNING --timeout 2m");
  ASSERT_EQ(submitted.exit, 0) << submitted.err;

  const Finished done = Run(
      "SOME_API_TOKEN=canary-of-variable sluice bug-report -o report.tar.gz && mkdir report && tar "
      "-xzf report.tar.gz -C report --strip-components 1");
  ASSERT_EQ(done.exit, 0) << done.err;
  EXPECT_THAT(done.err, testing::HasSubstr("nothing was sent"));
  EXPECT_EQ(std::filesystem::status(dir_ + "/report.tar.gz").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  for (const char* file : {"versions.txt", "doctor.txt", "environment_names.txt", "daemons.json",
                           "jobs.json", "metrics/queue-0.txt", "metrics/controller-0.txt",
                           "logs/queue-0.log", "logs/trainer-0.log"})
    EXPECT_TRUE(PathExists(absl::StrCat(dir_, "/report/", file))) << file;
  for (const char* file :
       {"status.json", "events.jsonl", "steps.jsonl", "log.jsonl", "why.txt", "queue.json"})
    EXPECT_EQ(Run(absl::StrCat("ls report/jobs/digits-*/", file)).exit, 0) << file;

  const std::string text = ReadTree(dir_ + "/report");
  EXPECT_THAT(text, testing::HasSubstr("SOME_API_TOKEN")) << "the name, not the value";
  EXPECT_THAT(text, testing::HasSubstr("[removed: PEM]")) << "the log with the canaries is in it";
  for (const std::string& canary : canaries)
    EXPECT_EQ(text.find(canary), std::string::npos) << canary;
  const std::string keys = Run("cat state/sluice/tls/*/tls.key").out;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(keys, '\n'))) {
    if (line.size() <= 20 || absl::StartsWith(line, "-")) continue;
    EXPECT_EQ(text.find(line), std::string::npos) << "a line of a private key";
  }
}

TEST(DocumentedCommands, ThoseWithinSentencesNameCommandsAndOptionsThatExist) {
  std::vector<Documented> found;
  for (const std::string& file : MarkdownFiles()) AddFromSentences(file, &found);
  EXPECT_GE(found.size(), 40u);
  found.push_back({"sluice job lisst", ""});  // Must be found.
  std::vector<std::string> unknown;
  for (const Documented& documented : found) {
    std::vector<std::string> words = absl::StrSplit(documented.command, ' ', absl::SkipEmpty());
    words.erase(words.begin());
    std::reverse(words.begin(), words.end());  // As CLI11 wants them.
    cli::SluiceApp app;
    try {
      app.parser().parse(words);
    } catch (const CLI::ExtrasError&) {
      unknown.push_back(absl::StrCat(documented.where, ": ", documented.command));
    } catch (const CLI::ParseError&) {
      // Something is missing, or FILE is no file: the sentence shows only a part of the command.
    }
  }
  EXPECT_THAT(unknown, testing::ElementsAre(": sluice job lisst"));
}

TEST(DocumentedCommands, EachRuleIsOfUse) {
  for (const Documented& documented : AllCommands()) {
    FindRule(kNotRun, documented.command);
    FindRule(kAppended, documented.command);
    FindRule(kBefore, documented.command);
    FindRule(kExits, documented.command);
  }
  const auto check = [](const auto& rules) {
    for (const Rule& rule : rules)
      EXPECT_EQ(UsedRules().count(&rule), 1u) << "no command begins with: " << rule.start;
  };
  check(kNotRun);
  check(kAppended);
  check(kBefore);
  check(kExits);
}

}  // namespace
}  // namespace sluice::integration
