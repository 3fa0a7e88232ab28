#include "services/rollout/http/guests.h"

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/services/rollout/http/fake_model.h"

namespace sluice::rollout::http {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class GuestsTest : public testing::Test {
 protected:
  // Adds a guest with `requests` requests, which notes "REQUEST:TOKEN" or "REQUEST:ERROR".
  uint64_t AddGuest(size_t requests, std::vector<std::string>* heard, uint64_t group = 0) {
    const auto guest = guests_.Add(
        model_, std::vector<Request>(requests, Request{.group = group}),
        [heard](StepEvents events) {
          for (const TokenEvent& event : events.tokens)
            heard->push_back(absl::StrCat(event.request, ":", event.token));
          for (const RequestFailure& failure : events.failures)
            heard->push_back(absl::StrCat(failure.request, ":", failure.status.message()));
        });
    EXPECT_TRUE(guest.ok()) << guest.status();
    return guest.value_or(0);
  }

  uint64_t IdOf(size_t request) { return model_->AwaitRequests(request + 1)[request].id; }

  Guests guests_{4};
  std::shared_ptr<FakeModel> model_ = std::make_shared<FakeModel>();
  std::vector<std::string> one_, two_;
};

TEST_F(GuestsTest, EachHearsOfItsOwnRequestsAlone) {
  AddGuest(1, &one_);
  AddGuest(2, &two_);

  // Request 1 belongs to no guest.
  guests_.DeliverEvents(Step({Sampled(IdOf(2), 7, ""), Sampled(IdOf(0), 8, ""),
                              Sampled(IdOf(1), 9, "", FinishReason::kStop), Sampled(1, 3, "")}));

  EXPECT_THAT(one_, ElementsAre("0:8"));
  EXPECT_THAT(two_, ElementsAre("1:7", "0:9"));
  EXPECT_EQ(guests_.running(), 2u);
}

TEST_F(GuestsTest, OfOneWhoLeavesWhatStillRunsIsAborted) {
  const uint64_t guest = AddGuest(3, &one_);
  guests_.DeliverEvents(Step({Sampled(IdOf(1), 7, "", FinishReason::kLength)}));
  guests_.AbortGuest(guest);
  EXPECT_THAT(model_->AwaitAborted(0), ElementsAre(IdOf(0), IdOf(2)));

  guests_.DeliverEvents(Step({Sampled(IdOf(0), 8, "")}));
  EXPECT_THAT(one_, ElementsAre("1:7"));
  EXPECT_EQ(guests_.running(), 0u);
  guests_.AbortGuest(guest);
  EXPECT_THAT(model_->AwaitAborted(0), ElementsAre(IdOf(0), IdOf(2)));
}

TEST_F(GuestsTest, TheLimitIsOfAllTogetherAndEndsMakeRoom) {
  AddGuest(3, &one_);
  const auto refused = guests_.Add(model_, std::vector<Request>(2), [](StepEvents) {});
  EXPECT_EQ(ReasonOf(refused.status()), "BUSY");
  EXPECT_EQ(refused.status().message(),
            "3 answers are being sampled and 2 more are asked for; at most 4 may run at once");

  guests_.DeliverEvents(Step({Sampled(IdOf(0), 7, "", FinishReason::kStop)}));
  AddGuest(2, &two_);
  EXPECT_EQ(guests_.running(), 4u);
}

TEST_F(GuestsTest, AModelThatGoesFailsWhatRunsOnIt) {
  AddGuest(2, &one_);
  auto other = std::make_shared<FakeModel>("other");
  ASSERT_TRUE(guests_.Add(other, std::vector<Request>(1), [](StepEvents) {}).ok());
  guests_.DeliverEvents(Step({Sampled(IdOf(0), 7, "", FinishReason::kStop)}));
  guests_.FailRequestsOf(model_.get(), absl::UnavailableError("gone"));

  EXPECT_THAT(one_, ElementsAre("0:7", "1:gone"));
  EXPECT_THAT(model_->AwaitAborted(0), IsEmpty());
  EXPECT_EQ(guests_.running(), 1u);
}

TEST_F(GuestsTest, GroupsOfTwoGuestsNeverMeet) {
  AddGuest(2, &one_, /*group=*/1);
  AddGuest(2, &two_, /*group=*/1);
  const std::vector<Request> requests = model_->AwaitRequests(4);
  EXPECT_EQ(requests[0].group, requests[1].group);
  EXPECT_EQ(requests[2].group, requests[3].group);
  EXPECT_NE(requests[0].group, requests[2].group);
}

}  // namespace
}  // namespace sluice::rollout::http
