#include "common/plugins/plugin_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/plugins/folder.h"

namespace sluice {
namespace {

using nlohmann::json;

PluginSpec Verl(const std::string& file) {
  return *ParsePluginSpec({{"verl", file + ":compute_score"}});
}

// The names of the files below the folder `root`.
std::vector<std::string> NamesOf(const PluginSpec& spec, const std::string& root) {
  std::vector<std::string> names;
  const std::vector<std::string> files = *PluginFiles(spec);
  for (const std::string& file : files) names.push_back(file.substr(root.size() + 1));
  return names;
}

TEST(PluginFilesTest, APythonFileBringsWhatItImportsBelowItsFolder) {
  const std::string file = WritePlugin("imports/reward.py",
                                       "import os, helpers as h\n"
                                       "from pack import (deep, x)\n"
                                       "def f():\n"
                                       "    from pack.sub import y  # only when it is called\n"
                                       "#import commented\n");
  const std::string root = file.substr(0, file.rfind('/'));
  WritePlugin("imports/helpers.py", "import reward\n");
  WritePlugin("imports/commented.py", "");
  WritePlugin("imports/unused.py", "");
  WritePlugin("imports/pack/__init__.py", "");
  WritePlugin("imports/pack/deep.py", "from . import near\nfrom ..helpers import z\n");
  WritePlugin("imports/pack/near.py", "");
  WritePlugin("imports/pack/sub.py", "");
  EXPECT_THAT(NamesOf(Verl(file), root),
              testing::ElementsAre("helpers.py", "pack/__init__.py", "pack/deep.py", "pack/near.py",
                                   "pack/sub.py", "reward.py"));
}

TEST(PluginFilesTest, TheVersionFollowsTheFilesAndNotTheirFolder) {
  const std::string one = WritePlugin("one/reward.py", "import helper\n");
  const std::string two = WritePlugin("two/reward.py", "import helper\n");
  WritePlugin("one/helper.py", "a = 1\n");
  WritePlugin("two/helper.py", "a = 1\n");
  EXPECT_EQ(*PluginVersion(Verl(one)), *PluginVersion(Verl(two)));

  WritePlugin("two/helper.py", "a = 2\n");
  EXPECT_NE(*PluginVersion(Verl(one)), *PluginVersion(Verl(two)));
  WritePlugin("two/helper.py", "a = 1\n");
  WritePlugin("two/unused.py", "b = 1\n");
  EXPECT_EQ(*PluginVersion(Verl(one)), *PluginVersion(Verl(two)));
}

TEST(PluginFilesTest, ACommandsFilesAreTheWordsThatAreFiles) {
  const std::string script = WritePlugin("command/main.py", "import helper\n");
  const std::string table = WritePlugin("command/table.json", "{}");
  WritePlugin("command/helper.py", "");
  const PluginSpec spec =
      *ParsePluginSpec({{"exec", {"python3", script, "--table", table, "/no/such/file"}}});
  EXPECT_THAT(NamesOf(spec, script.substr(0, script.rfind('/'))),
              testing::ElementsAre("helper.py", "main.py", "table.json"));
}

TEST(PluginFilesTest, AFileThatIsNotThereIsNamed) {
  EXPECT_TRUE(absl::IsNotFound(PluginVersion(Verl("/no/such/reward.py")).status()));
}

TEST(PluginSpecTest, ArgumentsThatSayNoProgramAreRefused) {
  const std::pair<json, const char*> wrong[] = {
      {json::object(), "must have one of verl, trl, native"},
      {{{"verl", "/a.py:f"}, {"trl", "/a.py:f"}}, "must have one of verl, trl, native"},
      {{{"verl", "/a.py"}}, "names no function; wanted: FILE.py:FUNCTION"},
      {{{"verl", "/a:f"}}, "wanted: FILE.py:FUNCTION"},
      {{{"verl", "a.py:f"}}, "wanted: an absolute path"},
      {{{"exec", {"python3", "main.py"}}}, "must be the path of your program"},
      {{{"verl", "/a.py:f"}, {"processes", 0}}, "a whole number from 1 to 64"},
      {{{"verl", "/a.py:f"}, {"low", 1}, {"high", 1}}, "low is 1, but must be below high"},
      {{{"verl", "/a.py:f"}, {"config", 3}}, "a mapping is needed"},
      {{{"verl", "/a.py:f"}, {"proceses", 2}}, "is unknown; the known ones are"}};
  for (const auto& [args, why] : wrong) {
    const auto spec = ParsePluginSpec(args);
    ASSERT_FALSE(spec.ok()) << args.dump();
    EXPECT_THAT(std::string(spec.status().message()), testing::HasSubstr(why)) << args.dump();
  }
}

TEST(PluginSpecTest, ItsPathsAreFoundWithoutTheFunction) {
  json args = {{"verl", "a.py:f"}, {"python", "venv/bin/python"}, {"config", {{"verl", "b.py:g"}}}};
  VisitPluginPaths(&args, [](const std::string&, std::string* path) { *path = "/x/" + *path; });
  EXPECT_EQ(args["verl"], "/x/a.py:f");
  EXPECT_EQ(args["python"], "/x/venv/bin/python");
  EXPECT_EQ(args["config"]["verl"], "b.py:g");
  json exec = {{"exec", {"node", "./main.js", "--fast"}}, {"python", "python3"}};
  VisitPluginPaths(&exec, [](const std::string&, std::string* path) { *path = "/x/" + *path; });
  EXPECT_EQ(exec["exec"], (json{"node", "/x/./main.js", "--fast"}));
  EXPECT_EQ(exec["python"], "python3");
}

}  // namespace
}  // namespace sluice
