#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "tests/deploy/command.h"

namespace sluice::deploy {
namespace {
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kImages = std::string(SLUICE_SOURCE_DIR) + "/deploy/images";
constexpr const char* kTargets[] = {"controller", "queue", "rollout", "reward", "trainer", "cli"};

struct Instruction {
  std::string word, rest;
};

// Lines that end with a backslash go on in the next one.
std::vector<Instruction> ReadInstructions(const std::string& dockerfile) {
  std::string joined;
  for (const absl::string_view line : absl::StrSplit(dockerfile, '\n'))
    if (!absl::StartsWith(line, "#")) absl::StrAppend(&joined, line, "\n");
  absl::StrReplaceAll({{"\\\n", " "}}, &joined);

  std::vector<Instruction> instructions;
  for (const absl::string_view line : absl::StrSplit(joined, '\n', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    instructions.push_back({parts.first, std::string(absl::StripAsciiWhitespace(parts.second))});
  }
  return instructions;
}

// What makes an image that others cannot trust or build again. Returns sentences.
std::vector<std::string> LintDockerfile(const std::string& dockerfile) {
  // A digest, or Debian's tag of a day, which is never given to another image.
  static const std::regex kPinned(R"(\S+(@sha256:[0-9a-f]{64}|:bookworm-\d{8}-slim))");
  static const std::regex kPipeToShell(R"(\|\s*(sudo\s+)?(\S*/)?(ba|da|z)?sh\b)");
  static const std::regex kSecret("(pass|secret|token|key|credential)", std::regex::icase);
  static const std::regex kTarget(R"((\S+) AS (\S+))");
  std::set<std::string> known;  // Stages, and arguments that are pinned images.
  std::string stage, user, entrypoint;
  std::vector<std::string> findings;
  const auto end_stage = [&] {
    const bool shipped = std::count(std::begin(kTargets), std::end(kTargets), stage) > 0;
    if (shipped && (user.empty() || absl::StartsWith(user, "0") || user == "root"))
      findings.push_back(absl::StrCat(stage, " runs as root"));
    if (shipped && !absl::StartsWith(entrypoint, "[\"/"))
      findings.push_back(absl::StrCat(stage, " has no ENTRYPOINT in exec form"));
    user.clear();
    entrypoint.clear();
  };

  for (const Instruction& instruction : ReadInstructions(dockerfile)) {
    const auto& [word, rest] = instruction;
    std::smatch match;
    if (word == "ADD") findings.push_back("ADD may fetch or unpack; COPY does neither");
    if (word == "RUN" && std::regex_search(rest, kPipeToShell))
      findings.push_back(absl::StrCat("RUN pipes into a shell: ", rest));
    if ((word == "ARG" || word == "ENV") &&
        std::regex_search(rest.substr(0, rest.find('=')), kSecret))
      findings.push_back(absl::StrCat(word, " keeps a secret in the image: ", rest));
    const std::vector<std::string> argument = absl::StrSplit(rest, absl::MaxSplits('=', 1));
    if (word == "ARG" && argument.size() == 2 && std::regex_match(argument[1], kPinned))
      known.insert(absl::StrCat("${", argument[0], "}"));
    if (word == "USER") user = rest;
    if (word == "ENTRYPOINT") entrypoint = rest;
    if (word == "CMD") findings.push_back("CMD: arguments belong into the manifests");
    if (word != "FROM") continue;

    end_stage();
    if (!std::regex_match(rest, match, kTarget)) {
      findings.push_back(absl::StrCat("FROM ", rest, " has no name"));
      continue;
    }
    const std::string base = match[1];
    if (!known.contains(base) && !std::regex_match(base, kPinned))
      findings.push_back(absl::StrCat("FROM ", base, " is not pinned"));
    stage = match[2];
    known.insert(stage);
  }
  end_stage();
  for (const char* target : kTargets)
    if (!known.contains(target)) findings.push_back(absl::StrCat("there is no target ", target));
  return findings;
}

TEST(DockerfileTest, IsPinnedKeepsNoSecretAndRunsAsNobody) {
  EXPECT_THAT(LintDockerfile(ReadFile(kImages + "/Dockerfile").value()), IsEmpty());
}

TEST(DockerfileTest, EachMistakeIsFound) {
  const std::string good = ReadFile(kImages + "/Dockerfile").value();
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"ADD https://example.org/x /x\n", "ADD may fetch"},
      {"RUN curl -s https://example.org | bash -s\n", "pipes into a shell"},
      {"RUN curl https://example.org | \\\n  /bin/sh\n", "pipes into a shell"},
      {"ARG NPM_TOKEN\n", "keeps a secret"},
      {"ENV DB_PASSWORD=x\n", "keeps a secret"},
      {"FROM debian:12-slim AS other\n", "debian:12-slim is not pinned"},
      {"FROM debian AS other\n", "debian is not pinned"},
      {"CMD [\"x\"]\n", "CMD"},
      {"USER 0:0\n", "cli runs as root"},
      {"ENTRYPOINT /usr/local/bin/sluice\n", "cli has no ENTRYPOINT in exec form"},
  };
  for (const auto& [line, finding] : mistakes)
    EXPECT_THAT(LintDockerfile(good + line), Contains(HasSubstr(finding))) << line;
}

// The Debian package of a library of /lib; empty if there is none. Packages list it under /usr/lib
// or under /lib, and by its own name or by that of the link to it. A look-up takes a third of a
// second, so answers are kept.
std::string PackageOf(const std::string& library) {
  static std::map<std::string, std::string> known;
  if (const auto it = known.find(library); it != known.end()) return it->second;
  std::vector<std::string> paths = {absl::StrCat("/usr", library), library};
  if (const auto real = RunCommand({"realpath", library}); real.ok())
    paths.emplace_back(absl::StripAsciiWhitespace(*real));

  std::string& package = known[library];
  for (const std::string& path : paths) {
    if (!package.empty()) break;
    const auto found = RunCommand({"dpkg-query", "-S", path});
    if (found.ok()) package = found->substr(0, found->find(':'));
  }
  return package;
}

TEST(PackagesTest, AnImageHasThePackagesThatItsProgramIsLinkedToAndNoOthers) {
  if (RunCommand({"dpkg-query", "--version"}).status().code() == absl::StatusCode::kNotFound)
    GTEST_SKIP() << "there is no dpkg-query to ask for the packages of libraries";
#if defined(SLUICE_SANITIZED)
  GTEST_SKIP() << "programs with sanitizers are linked to other libraries";
#endif
  for (const std::string target : kTargets) {
    const std::string program =
        absl::StrCat(SLUICE_BIN_DIR, "/sluice", target == "cli" ? "" : "-" + target);
    const absl::StatusOr<std::string> linked = RunCommand({"ldd", program});
    ASSERT_TRUE(linked.ok()) << linked.status();
    std::set<std::string> needed;
    // The authorities by which a reward daemon checks the certificates of judges, and what its
    // sandboxes run.
    if (target == "reward") needed = {"ca-certificates", "bubblewrap", "g++", "python3"};
    // It is loaded when a job asks for it.
    if (target == "rollout" || target == "trainer") needed.insert("libucx0");
    for (const absl::string_view line : absl::StrSplit(*linked, '\n', absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
      // LibTorch and what lies beside it come with the trainer's image.
      if (words.size() < 3 || words[1] != "=>" || !absl::StartsWith(words[2], "/lib/")) continue;
      const std::string package = PackageOf(words[2]);
      ASSERT_NE(package, "") << "no package has " << words[2];
      needed.insert(package);
    }

    std::set<std::string> listed;
    const std::string list = ReadFile(absl::StrCat(kImages, "/", target, ".packages")).value();
    for (const absl::string_view line : absl::StrSplit(list, '\n', absl::SkipEmpty()))
      if (!absl::StartsWith(line, "#")) listed.emplace(line);
    EXPECT_EQ(listed, needed) << target << ".packages";
  }
}

}  // namespace
}  // namespace sluice::deploy
