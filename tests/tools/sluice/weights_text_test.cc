#include "tools/sluice/weights_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using weights::v1::ListResponse;
using weights::v1::Manifest;

std::string State(char c) { return std::string(16, c); }

void AddNode(ListResponse* list, int64_t version, char state, char base, uint64_t bytes) {
  weights::v1::VersionNode& node = *list->add_nodes();
  *node.mutable_version() = rpc::ToProto(PolicyVersion{2, version});
  node.set_state(State(state));
  if (base != 0) node.set_base(State(base));
  node.set_kind(base == 0 ? Manifest::KIND_FULL : Manifest::KIND_DELTA);
  node.set_manifest(std::string(32, base == 0 ? 'f' : static_cast<char>('0' + version)));
  node.set_bytes(bytes);
}

// Versions 7 (whole), 8 and 9.
ListResponse SomeList() {
  ListResponse list;
  AddNode(&list, 7, 'a', 0, 1'000'000);
  AddNode(&list, 8, 'b', 'a', 2'000);
  AddNode(&list, 9, 'c', 'b', 3'000);
  weights::v1::HeldLease& pin = *list.add_leases();
  pin.add_manifests(std::string(32, 'f'));
  pin.set_pin(true);
  weights::v1::Replica& replica = *list.add_replicas();
  replica.set_replica("rollout-1");
  *replica.mutable_version() = rpc::ToProto(PolicyVersion{2, 8});
  replica.set_phase(weights::v1::REPLICA_PHASE_ACTIVE);
  replica.set_state(State('b'));
  replica.set_parent("rollout-0");
  replica.set_transport("shm");
  replica.set_transport_why("rollout-0 is on this host and shares its memory");
  replica.set_cause("rollout-2 lied: a piece has a wrong CRC");
  (*replica.mutable_times())["fetch"] = 0.25;
  return list;
}

TEST(WeightsTextTest, TheListShowsVersionsHoldersAndWhereEachReplicaFetches) {
  const std::string text = WeightsText(SomeList());
  EXPECT_THAT(text, testing::ContainsRegex("2:7 +full +1000.0 kB .* pinned"));
  EXPECT_THAT(text, testing::ContainsRegex("2:9 +delta +3000 B .* -"));
  EXPECT_THAT(text, testing::ContainsRegex("rollout-1 +2:8 +active +rollout-0 +shm +0.250 s"));
  EXPECT_THAT(text, HasSubstr("rollout-2 lied"));
}

TEST(WeightsTextTest, TheListShowsWhatIsOnTrialAndWhatWasGivenUp) {
  ListResponse list = SomeList();
  EXPECT_THAT(WeightsText(list), testing::Not(HasSubstr("trial")));

  list.mutable_nodes(2)->set_candidate(true);
  *list.mutable_trial()->mutable_version() = rpc::ToProto(PolicyVersion{2, 9});
  list.mutable_trial()->set_replica("rollout-1");
  list.mutable_trial()->mutable_waited()->set_seconds(3);
  list.mutable_trial()->set_text("it has computed 7 of 256 tokens");
  weights::v1::Withdrawn& withdrawn = *list.add_withdrawn();
  *withdrawn.mutable_version() = rpc::ToProto(PolicyVersion{1, 12});
  withdrawn.set_from(5);
  withdrawn.set_cause("4 of 4 rows of logits are not finite");

  const std::string text = WeightsText(list);
  EXPECT_THAT(text, testing::ContainsRegex("2:8 +delta .* promoted"));
  EXPECT_THAT(text, testing::ContainsRegex("2:9 +delta .* on trial"));
  EXPECT_THAT(text,
              HasSubstr("version 2:9 is on trial at rollout-1 since 3 s: it has computed 7 "));
  EXPECT_THAT(text,
              HasSubstr("version 1:12 was given up, and the run went on from version 5: 4 of"));
}

TEST(WeightsTextTest, AVersionIsNamedInFullOrByItsNumberOrAsTheLatest) {
  const ListResponse list = SomeList();
  for (const char* name : {"2:8", "8"})
    EXPECT_EQ(FindVersion(list, name)->version().number(), 8) << name;
  EXPECT_EQ(FindVersion(list, "latest")->version().number(), 9);
  EXPECT_THAT(FindVersion(list, "1:8").status().message(), HasSubstr("2:7, 2:8, 2:9"));
}

TEST(WeightsTextTest, APathFromHeldWeightsTakesTheDeltasThatAreMissing) {
  const ListResponse list = SomeList();
  const auto path = PathJson(list, list.replicas(0));
  ASSERT_EQ(path.status(), absl::OkStatus());
  EXPECT_EQ((*path)["bytes"], 3000);
  EXPECT_EQ((*path)["whole_bytes"], 1'005'000);
  EXPECT_EQ((*path)["edges"].size(), 1u);
  EXPECT_THAT(PathText(*path), HasSubstr("all weights would take 1005.0 kB"));
  EXPECT_EQ((*path)["transport"], "shm");
  EXPECT_THAT(PathText(*path), HasSubstr("rollout-1 fetches from rollout-0 by shm: rollout-0 is on "
                                         "this host and shares its memory"));
}

TEST(WeightsTextTest, APathFromNothingBeginsAtTheAnchorAndOneAtTheLatestIsEmpty) {
  ListResponse list = SomeList();
  const auto path = PathJson(list, std::nullopt);
  ASSERT_EQ(path.status(), absl::OkStatus());
  EXPECT_EQ((*path)["edges"].size(), 3u);
  EXPECT_THAT(PathText(*path), HasSubstr("load all"));
  EXPECT_TRUE((*path)["transport"].is_null());
  EXPECT_THAT(PathText(*path), testing::Not(HasSubstr("fetches from")));

  list.mutable_replicas(0)->set_state(State('c'));
  EXPECT_THAT(PathText(*PathJson(list, list.replicas(0))),
              HasSubstr("rollout-1 holds the weights of version 2:9"));
}

TEST(WeightsTextTest, ARolloutThatDiffersOrDoesNotAnswerIsNoSuccess) {
  job::v1::InspectResponse response;
  job::v1::RolloutVerified& first = *response.add_verified();
  first.set_daemon("rollout-0");
  first.mutable_answer()->set_equal(true);
  EXPECT_TRUE(AllVerified(response));

  job::v1::RolloutVerified& second = *response.add_verified();
  second.set_daemon("rollout-1");
  second.mutable_answer()->add_tensors("lm_head.weight");
  EXPECT_FALSE(AllVerified(response));
  EXPECT_THAT(VerifyText(response), HasSubstr("DIFFERS"));
  EXPECT_THAT(VerifyText(response), HasSubstr("lm_head.weight"));

  second.Clear();
  second.set_error("the deadline has passed");
  EXPECT_FALSE(AllVerified(response));
  EXPECT_THAT(VerifyText(response), HasSubstr("no answer: the deadline"));
}

}  // namespace
}  // namespace sluice::cli
