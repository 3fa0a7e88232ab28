#include "services/rollout/http/guests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::rollout::http {

absl::StatusOr<uint64_t> Guests::Add(std::shared_ptr<Model> model, std::vector<Request> requests,
                                     Sink sink) {
  uint64_t first = 0;
  {
    MutexLock lock(&mu_);
    if (running_ + requests.size() > most_requests_) {
      return Error(
          absl::StatusCode::kResourceExhausted, "BUSY",
          absl::StrCat(running_, " answers are being sampled and ", requests.size(),
                       " more are asked for; at most ", most_requests_, " may run at once"));
    }
    first = next_request_;
    uint64_t groups = 0;
    for (Request& request : requests) {
      request.id = next_request_++;
      groups = std::max(groups, request.group);
      if (request.group != 0) request.group += next_group_ - 1;
    }
    next_group_ += groups;
    running_ += requests.size();
    guests_.emplace(first, Guest{.model = model,
                                 .sink = std::make_shared<const Sink>(std::move(sink)),
                                 .runs = std::vector<bool>(requests.size(), true),
                                 .open = requests.size()});
  }
  model->Add(std::move(requests));
  return first;
}

void Guests::AbortGuest(uint64_t guest) {
  std::vector<uint64_t> running;
  std::shared_ptr<Model> model;
  std::shared_ptr<const Sink> sink;  // Destroyed after the lock is released.
  {
    MutexLock lock(&mu_);
    const auto left = guests_.find(guest);
    if (left == guests_.end()) return;
    for (size_t i = 0; i < left->second.runs.size(); ++i) {
      if (left->second.runs[i]) running.push_back(guest + i);
    }
    running_ -= running.size();
    model = std::move(left->second.model);
    sink = std::move(left->second.sink);
    guests_.erase(left);
  }
  model->Abort(running);
}

void Guests::DeliverEvents(StepEvents events) {
  std::map<uint64_t, Delivery> deliveries;  // By the guest's number.
  {
    MutexLock lock(&mu_);
    // Finds the guest's list for an event of `request`, and makes the id the index among the
    // guest's own. Null if the guest has left.
    const auto place = [&](uint64_t* request, bool ends)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> StepEvents* {
      const auto guest = Find(*request);
      if (guest == guests_.end()) return nullptr;
      // The sink is kept before EndRequest() may erase the guest.
      Delivery& delivery =
          deliveries.try_emplace(guest->first, Delivery{guest->second.sink, {}}).first->second;
      *request -= guest->first;
      if (ends) EndRequest(guest, *request);
      return &delivery.events;
    };
    for (TokenEvent& event : events.tokens) {
      if (StepEvents* const to = place(&event.request, event.finish != FinishReason::kNone))
        to->tokens.push_back(std::move(event));
    }
    for (RequestFailure& failure : events.failures) {
      if (StepEvents* const to = place(&failure.request, true))
        to->failures.push_back(std::move(failure));
    }
  }
  for (auto& [guest, delivery] : deliveries) (*delivery.sink)(std::move(delivery.events));
}

void Guests::FailRequestsOf(const Model* model, const absl::Status& why) {
  std::vector<Delivery> deliveries;
  {
    MutexLock lock(&mu_);
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      if (guest->second.model.get() != model) {
        ++guest;
        continue;
      }
      Delivery& delivery = deliveries.emplace_back(Delivery{guest->second.sink, {}});
      for (size_t i = 0; i < guest->second.runs.size(); ++i) {
        if (guest->second.runs[i]) delivery.events.failures.push_back({i, why});
      }
      running_ -= guest->second.open;
      guest = guests_.erase(guest);
    }
  }
  for (Delivery& delivery : deliveries) (*delivery.sink)(std::move(delivery.events));
}

size_t Guests::running() const {
  MutexLock lock(&mu_);
  return running_;
}

Guests::ById::iterator Guests::Find(uint64_t request) {
  auto guest = guests_.upper_bound(request);
  if (guest == guests_.begin()) return guests_.end();
  --guest;
  return request - guest->first < guest->second.runs.size() ? guest : guests_.end();
}

void Guests::EndRequest(ById::iterator guest, uint64_t request) {
  SLUICE_CHECK(guest->second.runs[request]);  // An engine ends each request once.
  guest->second.runs[request] = false;
  --running_;
  if (--guest->second.open == 0) guests_.erase(guest);
}

}  // namespace sluice::rollout::http
