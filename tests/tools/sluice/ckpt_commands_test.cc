#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/safetensors.h"
#include "common/testing/data.h"
#include "common/weights/fingerprint.h"
#include "tests/tools/sluice/run_command.h"
#include "tools/sluice/commands.h"

namespace sluice::cli {
namespace {

// Runs `sluice ckpt NAME ARGS..`.
CommandRun RunCkpt(const std::string& name, std::vector<std::string> args) {
  for (const Command& command : CkptCommands()) {
    if (command.name == name) return RunCommand(command, std::move(args));
  }
  ADD_FAILURE() << "no command ckpt " << name;
  return {};
}

class CkptCommandsTest : public testing::Test {
 protected:
  // Makes a model directory with the random weights of `seed`.
  std::string Init(int seed, const std::string& name) {
    const std::string dir = absl::StrCat(dir_, "/", name);
    std::filesystem::remove_all(dir);
    EXPECT_EQ(RunCkpt("init", {SLUICE_SOURCE_DIR "/configs/examples/digits", "--seed",
                               absl::StrCat(seed), "-o", dir})
                  .code,
              kDone);
    return dir;
  }

  static nlohmann::json Verify(const std::string& dir, ExitCode want) {
    const CommandRun ran = RunCkpt("verify", {dir, "-o", "json"});
    EXPECT_EQ(ran.code, want);
    return nlohmann::json::parse(ran.out).at(0);
  }

  const std::string dir_ = testing_data::TempPath("ckpt");
};

TEST_F(CkptCommandsTest, TheSameSeedHasTheSameFingerprintAndAnotherSeedAnother) {
  const auto one = Verify(Init(1, "one"), kDone), again = Verify(Init(1, "again"), kDone),
             two = Verify(Init(2, "two"), kDone);
  EXPECT_TRUE(one.at("ok").get<bool>());
  EXPECT_EQ(one.at("kind"), "model");
  EXPECT_EQ(one.at("fingerprint"), again.at("fingerprint"));
  EXPECT_NE(one.at("fingerprint"), two.at("fingerprint"));
}

TEST_F(CkptCommandsTest, ACutFileIsNamedAndTheCommandFails) {
  const std::string dir = Init(1, "cut"), file = dir + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const auto cut = Verify(dir, kFailed);
  EXPECT_FALSE(cut.at("ok").get<bool>());
  EXPECT_NE(cut.at("error").get<std::string>().find("model.safetensors"), std::string::npos) << cut;
}

TEST_F(CkptCommandsTest, AModelsFingerprintIsOfTheTypesThatItIsStoredIn) {
  const std::string dir = Init(1, "bf16");
  const ModelDir model = *ReadModelDir(dir);
  const TensorSet narrow = *ReadWeights(model, DType::kBF16);
  ASSERT_TRUE(WriteSafetensors(dir + "/model.safetensors", narrow).ok());
  EXPECT_EQ(Verify(dir, kDone).at("fingerprint"), FingerprintOf(narrow).hex());
}

// Two checkpoints of a job: the first one has lost its state, and a newer build wrote the second.
TEST_F(CkptCommandsTest, CheckpointsThatCannotBeReadAreListedWithTheReason) {
  const std::string job = dir_ + "/job/digits-01234567";
  std::filesystem::remove_all(dir_ + "/job");
  std::filesystem::create_directories(job + "/step-1");
  std::filesystem::create_directories(job + "/step-2");
  ASSERT_TRUE(WriteFileAtomic(job + "/step-2/state.json", R"({"format": 6})").ok());

  for (const std::string& dir : {job, dir_ + "/job"}) {
    const CommandRun ran = RunCkpt("verify", {dir, "-o", "json"});
    EXPECT_EQ(ran.code, kFailed);

    const nlohmann::json all = nlohmann::json::parse(ran.out);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].at("kind"), "checkpoint");
    EXPECT_NE(all[0].at("error").get<std::string>().find("step-1/state.json"), std::string::npos)
        << all;
    EXPECT_NE(all[1].at("error").get<std::string>().find("format 6"), std::string::npos) << all;
  }
}

}  // namespace
}  // namespace sluice::cli
