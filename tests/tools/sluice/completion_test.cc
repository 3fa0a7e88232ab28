#include "tools/sluice/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "tools/sluice/app.h"

namespace sluice::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> Words(const std::vector<std::string>& words) {
  SluiceApp app;
  std::vector<std::string> found;
  const FindNames names = [](const std::string& what, absl::Span<const std::string>) {
    return what == "JOB" ? std::vector<std::string>{"digits", "gsm"} : std::vector<std::string>();
  };
  for (const Candidate& candidate : CompleteWords(app.parser(), words, names))
    found.push_back(candidate.word);
  return found;
}

TEST(CompleteWords, OffersCommandsOptionsAndTheirValues) {
  EXPECT_THAT(Words({""}), AllOf(Contains("job"), Contains("doctor"), Contains("bug-report")));
  EXPECT_THAT(Words({"jo"}), ElementsAre("job"));
  EXPECT_THAT(Words({"job", "ca"}), ElementsAre("cancel"));
  EXPECT_THAT(Words({"job", "list", "--con"}), ElementsAre("--context"));
  EXPECT_THAT(Words({"job", "list", "-o", "j"}), ElementsAre("json", "jsonl"));
  EXPECT_THAT(Words({"job", "list", "--output", "w"}), ElementsAre("wide"));
  EXPECT_THAT(Words({"job", "logs", "digits", "--level", "w"}), ElementsAre("warning"));
  EXPECT_THAT(Words({"--con"}), ElementsAre("--context"));
  EXPECT_THAT(Words({"--context", "prod", "job", "ca"}), ElementsAre("cancel"));
  EXPECT_THAT(Words({"top", ""}), ElementsAre("jobs", "daemons"));
  EXPECT_THAT(Words({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
}

TEST(CompleteWords, OffersNamesOnlyWhereAnArgumentWantsThem) {
  EXPECT_THAT(Words({"job", "describe", ""}), ElementsAre("digits", "gsm"));
  EXPECT_THAT(Words({"why", "g"}), ElementsAre("gsm"));
  EXPECT_THAT(Words({"job", "steps", "--last", "5", "d"}), ElementsAre("digits"));
  EXPECT_THAT(Words({"job", "steps", "--last", ""}), IsEmpty()) << "a number";
  EXPECT_THAT(Words({"job", "describe", "digits", ""}), IsEmpty()) << "it takes one job";
  EXPECT_THAT(Words({"bug-report", "digits", "g"}), ElementsAre("gsm")) << "it takes several";
  EXPECT_THAT(Words({"run", ""}), IsEmpty()) << "the shell offers files";
}

TEST(CompleteWords, HidesWhatTheHelpHides) {
  EXPECT_THAT(Words({"dev", ""}), AllOf(Contains("up"), Not(Contains("supervise"))));
  EXPECT_THAT(Words({}), IsEmpty());
}

TEST(FindNamesOf, KnowsChecksAndErrors) {
  EXPECT_THAT(FindNamesOf("CHECK", {}), AllOf(Contains("disk"), Contains("pki.expiry")));
  EXPECT_THAT(FindNamesOf("CODE", {}), Contains("SLUICE-CTL-0006"));
}

// What a command prints, or "exit CODE" if it fails.
std::string Output(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  std::string out;
  for (int c; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
  const int status = pclose(pipe);
  return status == 0 ? out : absl::StrCat("exit ", WEXITSTATUS(status));
}

// Runs the script of a shell in that shell. Nothing answers where a controller would be, so names
// of jobs come from nowhere and must not take long.
class CompletionScripts : public ::testing::Test {
 protected:
  CompletionScripts() : dir_(::testing::TempDir() + "completion-" + std::to_string(getpid())) {
    EXPECT_TRUE(MakeDirs(dir_).ok());
    setenv("PATH", absl::StrCat(SLUICE_BIN_DIR, ":", getenv("PATH")).c_str(), 1);
    setenv("HOME", dir_.c_str(), 1);
    for (const char* name : {"XDG_CONFIG_HOME", "XDG_STATE_HOME", "SLUICE_DATA_DIR"})
      unsetenv(name);
    setenv("SLUICE_SERVER", "127.0.0.1:1", 1);
  }
  ~CompletionScripts() override { (void)RemoveTree(dir_); }

  // Whether the shell is there; else the test is skipped.
  static bool HasShell(const std::string& shell) {
    return Output(absl::StrCat("command -v ", shell)) != "exit 127" &&
           Output(absl::StrCat(shell, " -c true")).empty();
  }

  const std::string dir_;
};

TEST_F(CompletionScripts, BashCompletesCommandsAndOptions) {
  const auto completed = [&](const std::string& words, int at) {
    // What Tab does: bash sets these variables and calls the function.
    return Output(absl::StrCat(
        "bash -c 'source <(sluice completion bash); complete -p sluice > /dev/null || exit 9; "
        "COMP_WORDS=(",
        words, "); COMP_CWORD=", at, "; _sluice; echo \"${COMPREPLY[*]}\"'"));
  };
  EXPECT_EQ(completed("sluice job des", 2), "describe\n");
  EXPECT_EQ(completed("sluice job list --ser", 3), "--server\n");
  EXPECT_EQ(completed("sluice job list -o ya", 4), "yaml\n");
  EXPECT_EQ(completed("sluice doctor pki.exp", 2), "pki.expiry\n");
  EXPECT_EQ(completed("sluice job describe \"\"", 3), "\n");
}

TEST_F(CompletionScripts, FishCompletesCommandsWithTheirHelp) {
  if (!HasShell("fish")) GTEST_SKIP() << "fish is not installed";
  const std::string out =
      Output("fish -c 'sluice completion fish | source; complete -C \"sluice job des\"'");
  EXPECT_EQ(out, "describe\tShow a job's state and, at its end, its result\n");
}

TEST_F(CompletionScripts, ZshReadsItsScript) {
  if (!HasShell("zsh")) GTEST_SKIP() << "zsh is not installed";
  EXPECT_EQ(Output("sluice completion zsh > $HOME/_sluice && zsh -n $HOME/_sluice"), "");
  // The function with zsh's own functions in place that would write to the line.
  EXPECT_EQ(Output("zsh -fc 'compdef() { }; _files() { print files }; "
                   "_describe() { print -l -- \"${(@P)2}\" }; source $HOME/_sluice; "
                   "words=(sluice job des); CURRENT=3; _sluice; "
                   "words=(sluice run \"\"); CURRENT=3; _sluice'"),
            "describe:Show a job's state and, at its end, its result\nfiles\n");
}

}  // namespace
}  // namespace sluice::cli
