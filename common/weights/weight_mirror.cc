#include "common/weights/weight_mirror.h"

#include <optional>
#include <utility>

namespace sluice {

WeightMirror::WeightMirror(Options options, WeightFolderWriter writer)
    : options_(std::move(options)),
      writer_(std::make_shared<WeightFolderWriter>(std::move(writer))) {}

void WeightMirror::Write(const WeightPublisher& publisher) {
  if (hangs_ && disk_.is_busy()) return;
  std::optional<WeightPublisher::Snapshot> kept = publisher.TakeSnapshot();
  if (!kept.has_value()) return;
  const auto written = std::make_shared<absl::Status>();
  const absl::Status ended = disk_.Run(
      [writer = writer_, written, kept = *std::move(kept)] { *written = writer->Write(kept); },
      options_.patience);
  hangs_ = !ended.ok();

  const absl::Status status = ended.ok() ? *written : ended;
  const bool was_behind = std::exchange(behind_, !status.ok());
  if (was_behind != behind_ && options_.on_change) options_.on_change(status);
}

}  // namespace sluice
