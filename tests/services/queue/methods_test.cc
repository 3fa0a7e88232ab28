#include <functional>
#include <map>
#include <regex>

#include "google/protobuf/descriptor.h"
#include "tests/services/queue/wire.h"

// Checks every method of the service: a repeat changes nothing and gets the same answer, a lower
// incarnation is fenced and changes nothing, and a parked call ends with an edge that says what it
// waited for. The methods are read from the service's descriptor, so that none can be forgotten.
namespace sluice::queue {
namespace {

class MethodsTest : public WireTest {
 protected:
  // The job's ledger and lists as text: what a repeated or refused call must not change.
  std::string State() {
    v1::StatsRequest request;
    FillCall("controller", 0, request.mutable_call());
    v1::StatsResponse stats = *Once<v1::StatsResponse>(request);
    stats.mutable_ledger()->clear_event();
    std::string state = stats.ShortDebugString();

    v1::PeekRequest peek;
    FillCall("controller", 0, peek.mutable_call());
    for (v1::PeekWhat what : {v1::PEEK_WHAT_GROUPS, v1::PEEK_WHAT_TASKS, v1::PEEK_WHAT_BATCHES,
                              v1::PEEK_WHAT_PROMPTS}) {
      peek.set_what(what);
      const v1::PeekResponse rows = *Once<v1::PeekResponse>(peek);
      for (v1::PeekRow row : rows.rows()) {
        row.clear_age();
        // A group's row has the ages of its members.
        state += std::regex_replace(row.ShortDebugString(), std::regex("age[^,}]*"), "");
      }
    }
    return state;
  }

  // Sends a request of a keyed method (REPEAT_KEYED) twice. The second answer is marked as a repeat
  // and otherwise equal, and the state stays as it was after the first.
  template <typename Response, typename Request>
  void ExpectKeyed(const Request& request) {
    const auto first = Once<Response>(request);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_FALSE(first->repeat());

    const std::string state = State();
    auto again = Once<Response>(request);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(again->repeat());
    EXPECT_EQ(State(), state);

    Response same = *first;
    Normalize(&same);
    Normalize(&*again);
    EXPECT_EQ(again->ShortDebugString(), same.ShortDebugString());
  }

  // The request of a lower incarnation is refused and changes nothing.
  template <typename Response, typename Request>
  void ExpectFenced(Request request) {
    const std::string state = State();
    request.mutable_call()->mutable_job()->set_incarnation(request.call().job().incarnation() - 1);
    EXPECT_EQ(ReasonOf(Once<Response>(request).status()), "FENCED") << request.GetTypeName();
    EXPECT_EQ(State(), state);
  }

  // The request parks, and its answer names what it waited for.
  template <typename Response, typename Request>
  void ExpectEdge(Request request) {
    request.mutable_wait()->set_nanos(1000000);
    // With the old request id the call would get the answer that is kept for it.
    if (!request.call().request().empty()) request.mutable_call()->set_request(RandomId16());
    const auto answer = Once<Response>(request);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_FALSE(answer->edge().cause().empty());
    EXPECT_FALSE(answer->edge().on().id().empty());
  }

  template <typename Request>
  Request For(const std::string& worker, bool with_request = false) {
    Request request;
    const int64_t incarnation = worker == "t1"   ? trainer_incarnation_
                                : worker == "w1" ? reward_incarnation_
                                : worker == "r1" ? rollout_incarnation_
                                                 : 0;
    FillCall(worker, incarnation, request.mutable_call(), with_request);
    return request;
  }

 private:
  // Clears what may differ between an answer and its repeat.
  template <typename Response>
  static void Normalize(Response* response) {
    const auto* descriptor = response->GetDescriptor();
    response->GetReflection()->ClearField(response, descriptor->FindFieldByName("repeat"));
    if (const auto* ledger = descriptor->FindFieldByName("ledger")) {
      static_cast<common::v1::Ledger*>(response->GetReflection()->MutableMessage(response, ledger))
          ->clear_event();
    }
    if (const auto* items = descriptor->FindFieldByName("items")) {
      for (int i = 0; i < response->GetReflection()->FieldSize(*response, items); ++i) {
        static_cast<common::v1::Item*>(
            response->GetReflection()->MutableRepeatedMessage(response, items, i))
            ->clear_repeat();
      }
    }
  }
};

TEST_F(MethodsTest, EachMethodToleratesRepeatsAndFencesLowerIncarnations) {
  // Below 2 there is an incarnation that can be fenced.
  trainer_incarnation_ = rollout_incarnation_ = reward_incarnation_ = 2;
  std::map<std::string, std::function<void()>> checks;
  v1::AdmitResponse admitted;
  v1::LeaseTasksResponse tasks;
  v1::Batch batch;
  std::string hash;

  // The methods in the order of a step: each prepares the next.
  std::vector<std::string> order = {"SetJob", "Restore", "AdvanceVersion", "Renew",        "Admit",
                                    "Put",    "Seal",    "LeaseTasks",     "AcquireBatch", "Get",
                                    "Apply",  "Durable", "Release",        "Drop",         "Stats",
                                    "Peek",   "Watch",   "Retask"};

  checks["SetJob"] = [&] {
    v1::SetJobRequest request = JobRequest();
    auto first = Once<v1::SetJobResponse>(request);
    ASSERT_TRUE(first.ok()) << first.status();
    request.set_revision(++revision_);
    ExpectKeyed<v1::SetJobResponse>(request);

    request.set_revision(1);
    EXPECT_EQ(ReasonOf(Once<v1::SetJobResponse>(request).status()), "LOST_RACE");
  };

  checks["Restore"] = [&] {
    auto request = For<v1::RestoreRequest>("t1");
    request.set_mode(v1::RESTORE_MODE_REPLAY);
    ExpectFenced<v1::RestoreResponse>(request);
    ExpectKeyed<v1::RestoreResponse>(request);
  };

  checks["AdvanceVersion"] = [&] {
    auto request = For<v1::AdvanceVersionRequest>("t1");
    request.mutable_next()->set_incarnation(trainer_incarnation_);
    ExpectFenced<v1::AdvanceVersionResponse>(request);
    ExpectKeyed<v1::AdvanceVersionResponse>(request);
  };

  checks["Renew"] = [&] {
    auto request = For<v1::RenewRequest>("r1");
    request.add_loaded()->mutable_version()->set_incarnation(trainer_incarnation_);
    request.mutable_loaded(0)->set_verified(true);
    request.add_leases(RandomId16());
    ExpectFenced<v1::RenewResponse>(request);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Once<v1::RenewResponse>(request)->lost_size(), 1);
  };

  checks["Admit"] = [&] {
    auto request = For<v1::AdmitRequest>("r1", true);
    request.set_room(4);
    ExpectFenced<v1::AdmitResponse>(request);
    ExpectKeyed<v1::AdmitResponse>(request);

    admitted = *Once<v1::AdmitResponse>(request);
    ASSERT_EQ(admitted.grants_size(), 2);
    ExpectEdge<v1::AdmitResponse>(request);
  };

  checks["Put"] = [&] {
    const v1::Grant& grant = admitted.grants(0);
    const auto put = [&](int64_t incarnation) {
      v1::PutHeader header;
      FillCall("r1", incarnation, header.mutable_call());
      header.set_seq(1);
      *header.add_records() = PromptRecord(grant, grant.members(0));
      rpc::ClientStream stream(*channel_, *v1::PutMessage::descriptor());
      EXPECT_TRUE(stream.WriteFrame(header, {{.bytes = Column(3, 0)}}).ok());

      v1::PutAck ack;
      const bool read = stream.Read(&ack);
      EXPECT_EQ(ack.failed_size(), 0);
      stream.WritesDone();
      return read ? absl::OkStatus() : stream.Finish();
    };

    const std::string before = State();
    EXPECT_EQ(ReasonOf(put(rollout_incarnation_ - 1)), "FENCED");
    EXPECT_EQ(State(), before);
    EXPECT_TRUE(put(rollout_incarnation_).ok());

    const std::string after = State();
    EXPECT_TRUE(put(rollout_incarnation_).ok());
    EXPECT_EQ(State(), after);
  };

  checks["Seal"] = [&] {
    Sample(admitted.grants(0), admitted.grants(0).members(0));
    const v1::Member& member = admitted.grants(0).members(1);
    Sample(admitted.grants(0), member);  // Seals it, so that each Seal below is a repeat.
    auto request = For<v1::SealRequest>("r1");
    *request.add_items() = SealOf(admitted.grants(0), member);
    ExpectFenced<v1::SealResponse>(request);

    const std::string state = State();
    const auto again = Once<v1::SealResponse>(request);
    EXPECT_TRUE(again->repeat() && again->items(0).repeat());
    EXPECT_EQ(again->items(0).code(), 0u);
    EXPECT_EQ(State(), state);
  };

  checks["LeaseTasks"] = [&] {
    auto request = For<v1::LeaseTasksRequest>("w1", true);
    request.add_rooms()->set_pool("cpu");
    request.mutable_rooms(0)->set_count(2);
    ExpectFenced<v1::LeaseTasksResponse>(request);
    ExpectKeyed<v1::LeaseTasksResponse>(request);

    tasks = *Once<v1::LeaseTasksResponse>(request);
    ASSERT_EQ(tasks.tasks_size(), 2);
    ExpectEdge<v1::LeaseTasksResponse>(request);
  };

  checks["AcquireBatch"] = [&] {
    auto request = For<v1::AcquireBatchRequest>("t1");
    ExpectEdge<v1::AcquireBatchResponse>(request);
    for (const v1::Task& task : tasks.tasks()) Score(task, 1);
    ExpectFenced<v1::AcquireBatchResponse>(request);
    ExpectKeyed<v1::AcquireBatchResponse>(request);
    batch = Once<v1::AcquireBatchResponse>(request)->batch();
  };

  checks["Get"] = [&] {
    std::vector<common::v1::Want> wants(1);
    wants[0].mutable_owner()->set_group(batch.groups(0).group());

    const std::string state = State();
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(Client("t1", trainer_incarnation_)->GetAll(batch.lease().id(), wants)->size(), 1u);
    EXPECT_EQ(
        ReasonOf(
            Client("t1", trainer_incarnation_ - 1)->GetAll(batch.lease().id(), wants).status()),
        "FENCED");
    EXPECT_EQ(State(), state);
  };

  checks["Apply"] = [&] {
    v1::ApplyRequest request = ApplyOf(batch);
    FillCall("t1", trainer_incarnation_, request.mutable_call());
    ExpectFenced<v1::ApplyResponse>(request);
    ExpectKeyed<v1::ApplyResponse>(request);
    hash = Once<v1::ApplyResponse>(request)->ledger().hash();
  };

  checks["Durable"] = [&] {
    auto request = For<v1::DurableRequest>("t1");
    request.set_version(1);
    request.set_hash(hash);
    ExpectFenced<v1::DurableResponse>(request);
    ExpectKeyed<v1::DurableResponse>(request);
  };

  checks["Release"] = [&] {
    auto request = For<v1::ReleaseRequest>("r1");
    request.add_leases(admitted.grants(1).members(0).lease().id());
    request.set_reason(v1::RELEASE_REASON_DRAIN);
    ExpectFenced<v1::ReleaseResponse>(request);
    EXPECT_EQ(Once<v1::ReleaseResponse>(request)->released(), 1u);

    const std::string state = State();
    const auto again = Once<v1::ReleaseResponse>(request);
    EXPECT_TRUE(again->repeat());
    EXPECT_EQ(again->released(), 0u);
    EXPECT_EQ(State(), state);
  };

  checks["Drop"] = [&] {
    auto request = For<v1::DropRequest>("r1");
    v1::DropItem& item = *request.add_items();
    item.mutable_ref()->set_group(admitted.grants(1).group());
    item.set_lease(admitted.grants(1).members(1).lease().id());
    item.set_reason("prompt_too_long");

    ExpectFenced<v1::DropResponse>(request);
    ExpectKeyed<v1::DropResponse>(request);
  };

  checks["Stats"] = [&] { EXPECT_EQ(State(), State()); };

  checks["Peek"] = [&] {
    auto request = For<v1::PeekRequest>("controller");
    EXPECT_TRUE(absl::IsInvalidArgument(Once<v1::PeekResponse>(request).status()));
    request.set_what(v1::PEEK_WHAT_VIOLATIONS);
    EXPECT_EQ(Once<v1::PeekResponse>(request)->rows_size(), 0);
  };

  checks["Watch"] = [&] {
    const auto first = [&](int64_t incarnation) {
      v1::WatchRequest request;
      FillCall("r1", incarnation, request.mutable_call());
      rpc::ClientStream stream(*channel_, *v1::WatchRequest::descriptor());
      stream.Write(request);
      stream.WritesDone();
      v1::WatchResponse state;
      const bool read = stream.Read(&state);
      if (read) stream.TryCancel();
      return std::make_pair(state.version(), read ? absl::OkStatus() : stream.Finish());
    };

    EXPECT_EQ(first(rollout_incarnation_).first, 1);
    EXPECT_EQ(ReasonOf(first(rollout_incarnation_ - 1).second), "FENCED");
  };

  checks["Retask"] = [&] {
    auto request = For<v1::RetaskRequest>("controller");
    EXPECT_TRUE(absl::IsInvalidArgument(Once<v1::RetaskResponse>(request).status()));
    request.set_mode(v1::RETASK_MODE_READMIT);
    EXPECT_TRUE(Once<v1::RetaskResponse>(request).ok());
    EXPECT_EQ(Once<v1::RetaskResponse>(request)->count(), 0u) << "again it moves nothing";

    FillCall("r1", rollout_incarnation_, request.mutable_call());
    EXPECT_EQ(ReasonOf(Once<v1::RetaskResponse>(request).status()), "WRONG_ROLE");
  };

  const auto* service = v1::SetJobRequest::descriptor()->file()->FindServiceByName("QueueService");
  ASSERT_EQ(static_cast<size_t>(service->method_count()), order.size())
      << "a method is not checked";
  for (int m = 0; m < service->method_count(); ++m)
    EXPECT_TRUE(checks.contains(service->method(m)->name())) << service->method(m)->name();

  for (const std::string& name : order) {
    SCOPED_TRACE(name);
    checks.at(name)();
    ASSERT_FALSE(HasFatalFailure());
  }
}

}  // namespace
}  // namespace sluice::queue
