#include "tools/sluice/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/status.h"
#include "tools/sluice/app.h"
#include "tools/sluice/client.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

// The files of this test's user are in a folder of its own.
class ContextTest : public ::testing::Test {
 protected:
  ContextTest() : dir_(::testing::TempDir() + "context-" + std::to_string(getpid())) {
    setenv("XDG_CONFIG_HOME", dir_.c_str(), 1);
    setenv("XDG_STATE_HOME", dir_.c_str(), 1);
    for (const char* name : {"SLUICE_CONTEXT", "SLUICE_SERVER", "SLUICE_DATA_DIR", "SLUICE_TLS"})
      unsetenv(name);
    ContextFlag().clear();
  }

  ~ContextTest() override {
    for (const char* name :
         {"SLUICE_CONTEXT", "SLUICE_SERVER", "XDG_CONFIG_HOME", "XDG_STATE_HOME"})
      unsetenv(name);
    ContextFlag().clear();
    (void)RemoveTree(dir_);
  }

  void Write(const Contexts& contexts) {
    ASSERT_EQ(WriteContexts(ContextsPath(), contexts), absl::OkStatus());
  }

  const std::string dir_;
};

TEST_F(ContextTest, TheFileReadsBackAsWritten) {
  EXPECT_EQ(*ReadContexts(ContextsPath()), Contexts());
  const Contexts contexts = {.current = "prod",
                             .all = {{"prod", {"a.example:7400,b.example:7400", "/home/x y/tls"}},
                                     {"true", {"[::1]:7400", ""}}}};
  Write(contexts);
  EXPECT_EQ(*ReadContexts(ContextsPath()), contexts);
}

TEST_F(ContextTest, AFileOfAnotherFormIsRefusedWithItsLine) {
  for (const auto& [text, place] : {std::pair{"- a\n", ":1: "},
                                    {"contexts:\n  a: {sever: x}\n", ":2: "},
                                    {"contexts: 7\n", ":1: "},
                                    {"current: [a]\n", ":1: "},
                                    {"contexts: {a", "yaml: "}}) {
    ASSERT_TRUE(MakeDirs(dir_ + "/sluice").ok());
    ASSERT_TRUE(WriteFileAtomic(ContextsPath(), text).ok());
    const absl::Status status = ReadContexts(ContextsPath()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(place)) << text;
  }
}

TEST_F(ContextTest, AFlagIsAboveTheEnvironmentAndThatIsAboveTheCurrentContext) {
  EXPECT_EQ(*FindController(""), "") << "nothing is named, and no fleet runs";
  Write({.current = "one", .all = {{"one", {"one:1", ""}}, {"two", {"two:2", ""}}}});
  EXPECT_EQ(*FindController(""), "one:1");
  setenv("SLUICE_CONTEXT", "two", 1);
  EXPECT_EQ(*FindController(""), "two:2");
  setenv("SLUICE_SERVER", "env:3", 1);
  EXPECT_EQ(*FindController(""), "env:3");
  ContextFlag() = "one";
  EXPECT_EQ(*FindController(""), "one:1");
  EXPECT_EQ(*FindController("flag:4"), "flag:4");
}

TEST_F(ContextTest, TheFlagStandsBeforeTheCommandOrBehindIt) {
  const auto chosen = [](const std::string& words) {
    ContextFlag().clear();
    SluiceApp app;
    app.parser().parse(words);
    return ContextFlag();
  };
  EXPECT_EQ(chosen("--context one job list"), "one");
  EXPECT_EQ(chosen("--context=one why digits"), "one");
  EXPECT_EQ(chosen("job list --context two"), "two");
  EXPECT_EQ(chosen("--context one job list --context two"), "two");
  EXPECT_EQ(chosen("job list"), "");

  SluiceApp app;
  app.parser().parse("--context one version");
  EXPECT_EQ(app.Run(), kMisuse) << "it calls no fleet";
}

TEST_F(ContextTest, AnUnknownContextIsAnErrorThatNamesTheNearest) {
  Write({.all = {{"prod", {"a:1", ""}}, {"dev", {"b:2", ""}}}});
  ContextFlag() = "prd";
  const absl::Status status = FindController("").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DetailOf(status).hint, "did you mean prod?");
}

TEST_F(ContextTest, TheFolderOfTheChosenContextIsTheCertificate) {
  Write({.current = "one", .all = {{"one", {"one:1", dir_ + "/no-such-tls"}}}});
  EXPECT_THAT(ConnectToController("").status().message(), HasSubstr("no-such-tls"));
}

}  // namespace
}  // namespace sluice::cli
