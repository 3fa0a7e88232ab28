// The command lines that --help and the READMEs show have commands, flags and values that the
// parser accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "tools/sluice/app.h"

namespace sluice::cli {
namespace {

// Returns the words of a shell's command line up to a comment, &&, | or >. Quotes hold words
// together.
std::vector<std::string> ShellWords(absl::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // A word has begun.
  char quote = 0;
  for (const char c : absl::StrCat(line, " ")) {
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote == 0 ? c : 0;
      open = true;
    } else if (quote == 0 && c == ' ') {
      if (word == "&&" || word == "|" || word == ">" || absl::StartsWith(word, "#")) return words;
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  return words;
}

// Returns what the parser reports about the line, or an empty text if it accepts the line.
std::string Complaint(const std::string& line) {
  std::vector<std::string> words = ShellWords(line);
  SluiceApp app;

  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  try {
    app.parser().parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

// Returns the parts of `text` that begin with the program's name where a command may stand.
std::vector<std::string> CommandLines(const std::string& text) {
  std::vector<std::string> commands;
  const std::string whole_lines = absl::StrReplaceAll(text, {{"\\\n", " "}});
  for (absl::string_view line : absl::StrSplit(whole_lines, '\n')) {
    for (absl::string_view part : absl::StrSplit(line, " && ")) {
      part = absl::StripLeadingAsciiWhitespace(part);
      absl::ConsumePrefix(&part, "$ ");
      absl::ConsumePrefix(&part, "build/release/bin/");
      if (absl::StartsWith(part, "sluice ")) commands.emplace_back(part);
    }
  }
  return commands;
}

// Appends the examples in the help of `app` and of all its subcommands.
void AddFooters(CLI::App* app, std::string* text) {
  absl::StrAppend(text, app->get_footer(), "\n");
  for (CLI::App* sub : app->get_subcommands({})) AddFooters(sub, text);
}

TEST(Examples, OfEveryHelpTextParse) {
  SluiceApp app;
  std::string text;
  AddFooters(&app.parser(), &text);
  const std::vector<std::string> commands = CommandLines(text);

  EXPECT_GE(commands.size(), 30u);
  for (const std::string& command : commands) EXPECT_EQ(Complaint(command), "") << command;
}

TEST(Examples, OfTheReadmesAndRunbooksParse) {
  size_t found = 0;
  std::vector<std::string> pages = {"README.md"};
  for (const char* daemon : {"controller", "queue", "rollout", "reward", "trainer"})
    pages.push_back(absl::StrCat("services/", daemon, "/README.md"));
  const std::string runbooks = "deploy/monitoring/runbooks";
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat(SLUICE_SOURCE_DIR "/", runbooks)))
    pages.push_back(absl::StrCat(runbooks, "/", entry.path().filename().string()));

  for (const std::string& readme : pages) {
    const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(SLUICE_SOURCE_DIR "/", readme));
    ASSERT_TRUE(text.ok()) << text.status();
    std::string typed;  // Lines with a prompt. Other code is diagrams and output.
    for (const absl::string_view line :
         absl::StrSplit(absl::StrReplaceAll(*text, {{"\\\n", " "}}), '\n')) {
      if (absl::StartsWith(line, "$ ")) absl::StrAppend(&typed, line, "\n");
    }
    for (const std::string& command : CommandLines(typed)) {
      ++found;
      EXPECT_EQ(Complaint(command), "") << readme << ": " << command;
    }
  }

  EXPECT_GE(found, 30u);
}

TEST(Examples, NameFilesOfThisTreeWhereTheyNameConfigs) {
  SluiceApp app;
  std::string text;
  AddFooters(&app.parser(), &text);

  for (const std::string& command : CommandLines(text)) {
    for (const std::string& word : ShellWords(command)) {
      // A function of a file is named FILE:FUNCTION.
      if (absl::StartsWith(word, "configs/")) {
        const std::string file = word.substr(0, word.find(':'));
        EXPECT_TRUE(PathExists(absl::StrCat(SLUICE_SOURCE_DIR "/", file))) << command;
      }
    }
  }
}

TEST(Examples, AnUnknownFlagOrCommandIsSeen) {
  EXPECT_NE(Complaint("sluice run job.yaml --no-such-flag"), "");
  EXPECT_NE(Complaint("sluice no-such-command"), "");
  EXPECT_NE(Complaint("sluice eval model --data heldout.jsonl .."), "");
}

TEST(Examples, AnArgumentMayBeNamedLikeACommandAndFollowAnOption) {
  EXPECT_EQ(Complaint("sluice why dev"), "");
  EXPECT_EQ(Complaint("sluice job describe list -o json"), "");
  EXPECT_EQ(Complaint("sluice doctor job --job job.yaml"), "");
  EXPECT_EQ(Complaint("sluice job submit --set name=a --set run.seed=2 job.yaml"), "");
  EXPECT_NE(Complaint("sluice version version"), "");
}

}  // namespace
}  // namespace sluice::cli
