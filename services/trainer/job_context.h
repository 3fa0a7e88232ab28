#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/daemon/waits.h"
#include "services/trainer/config.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::trainer {

// What all parts of one training job share. It outlives them.
struct JobContext {
  const JobConfig config;
  const std::string worker;  // This daemon's id.
  Clock* const clock = Clock::Real();
  const std::function<void(common::v1::Event event)> event_sink;  // May be empty.
  daemon::Waits waits{worker};

  // Raises an event that users of the job will read.
  void RaiseEvent(common::v1::Severity severity, absl::string_view code,
                  absl::string_view message) const {
    if (!event_sink) return;
    common::v1::Event event;
    event.set_job(config.id);
    event.set_severity(severity);
    event.set_code(std::string(code));
    event.set_message(std::string(message));
    event_sink(std::move(event));
  }

  double SecondsSince(absl::Duration start) const {
    return absl::ToDoubleSeconds(clock->Monotonic() - start);
  }
};

}  // namespace sluice::trainer
