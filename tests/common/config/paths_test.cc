// A path of a job's spec that lies outside of the operator's roots is refused at the submission and
// by each daemon, whichever field it is in.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "common/base/file.h"
#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/config/check.h"
#include "common/config/fields.h"
#include "common/config/leaves.h"
#include "common/testing/data.h"
#include "sluice/job/v1/spec.pb.h"
#include "sluice/rpc/v1/options.pb.h"
#include "tests/common/base/hostile_paths.h"

namespace sluice {
namespace {

// Adds the names of all fields with a path below a message. `seen`: the messages that were looked
// at, because some contain themselves.
void AddPaths(const google::protobuf::Descriptor& message,
              std::set<const google::protobuf::Descriptor*>* seen, std::set<std::string>* names) {
  if (!seen->insert(&message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *message.field(i);
    if (config::RuleOf(field).path()) names->insert(field.full_name());
    if (field.message_type() != nullptr) AddPaths(*field.message_type(), seen, names);
  }
}

class PathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing_data::TempPath(testing::UnitTest::GetInstance()->current_test_info()->name());
    for (const char* name : {"/read", "/write"}) ASSERT_TRUE(MakeDirs(dir_ + name).ok());
    SetProcessRoots(*Roots::Open({dir_ + "/read"}, {dir_ + "/write"}));
  }
  void TearDown() override { SetProcessRoots(nullptr); }

  // A spec with a path in each field that has one.
  job::v1::JobSpec Spec() const {
    job::v1::JobSpec spec;
    spec.mutable_model()->set_path(dir_ + "/read/model");
    spec.mutable_model()->mutable_init()->set_config(dir_ + "/read/config");
    spec.mutable_model()->set_chat_template(dir_ + "/read/template");
    spec.mutable_model()->mutable_teacher()->set_path(dir_ + "/read/teacher");
    spec.mutable_trainer()->mutable_critic()->set_path(dir_ + "/read/critic");
    spec.mutable_data()->add_train()->set_path(dir_ + "/read/train.jsonl");
    spec.mutable_eval()->add_datasets()->set_path(dir_ + "/read/test.jsonl");
    spec.mutable_checkpoint()->set_dir(dir_ + "/write/job");
    spec.mutable_weights()->set_dir(dir_ + "/write/weights");
    return spec;
  }

  // Calls `visit` with each path, which it may change.
  static void VisitPaths(job::v1::JobSpec* spec,
                         const std::function<void(const config::Leaf&, std::string)>& visit) {
    config::VisitLeaves(*spec, /*unset_blocks=*/false, [&](const config::Leaf& leaf) {
      if (!config::RuleOf(*leaf.field).path() || !config::IsSet(leaf)) return;
      visit(leaf, leaf.message->GetReflection()->GetString(*leaf.message, leaf.field));
    });
  }
  static void Set(const config::Leaf& leaf, const std::string& value) {
    auto* const message = const_cast<google::protobuf::Message*>(leaf.message);
    message->GetReflection()->SetString(message, leaf.field, value);
  }

  std::string dir_;
};

TEST_F(PathsTest, TheSpecOfThisTestHasEachFieldThatHasAPath) {
  std::set<std::string> all, here;
  std::set<const google::protobuf::Descriptor*> seen;
  AddPaths(*job::v1::JobSpec::descriptor(), &seen, &all);
  job::v1::JobSpec spec = Spec();
  VisitPaths(&spec, [&](const config::Leaf& leaf, const std::string&) {
    here.insert(leaf.field->full_name());
  });
  // A directory as the reference is refused for another reason.
  here.insert("sluice.job.v1.Model.reference");
  EXPECT_EQ(here, all);
  EXPECT_EQ(CheckOnDaemon(spec, /*writes=*/true), absl::OkStatus());
}

TEST_F(PathsTest, EachHostilePathIsRefusedInEachField) {
  job::v1::JobSpec spec = Spec();
  int refused = 0;
  VisitPaths(&spec, [&](const config::Leaf& leaf, const std::string& good) {
    for (const std::string& path : HostilePaths(dir_)) {
      if (path.empty()) continue;  // Means that the field is not set.
      Set(leaf, path);
      const absl::Status status = CheckOnDaemon(spec, /*writes=*/true);
      EXPECT_EQ(ReasonOf(status), "OUTSIDE_ROOTS") << leaf.path << ": " << path << ": " << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(leaf.path));
      ++refused;
    }
    Set(leaf, good);
  });
  EXPECT_GE(refused, 600);
  EXPECT_EQ(CheckOnDaemon(spec, /*writes=*/true), absl::OkStatus());
}

TEST_F(PathsTest, AHostilePathOfAPluginIsRefused) {
  job::v1::JobSpec spec = Spec();
  job::v1::RewardEntry& entry = *spec.mutable_reward()->add_rewards();
  entry.set_name("mine");
  entry.set_verifier("plugin");
  google::protobuf::Value& verl = (*entry.mutable_args()->mutable_fields())["verl"];
  for (const std::string& path : HostilePaths(dir_)) {
    verl.set_string_value(path + "/reward.py:compute_score");
    const absl::Status status = CheckOnDaemon(spec);
    EXPECT_EQ(ReasonOf(status), "OUTSIDE_ROOTS") << path << ": " << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("reward.rewards.0.args.verl"));
  }
  verl.set_string_value(dir_ + "/read/reward.py:compute_score");
  EXPECT_EQ(CheckOnDaemon(spec), absl::OkStatus());
}

TEST_F(PathsTest, ADaemonThatOnlyReadsDoesNotJudgeWhereOthersWrite) {
  job::v1::JobSpec spec = Spec();
  spec.mutable_checkpoint()->set_dir("/elsewhere");
  EXPECT_EQ(CheckOnDaemon(spec), absl::OkStatus());
  EXPECT_EQ(ReasonOf(CheckOnDaemon(spec, /*writes=*/true)), "OUTSIDE_ROOTS");
}

}  // namespace
}  // namespace sluice
