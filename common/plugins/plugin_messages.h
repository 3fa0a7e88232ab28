#pragma once

#include "absl/status/statusor.h"
#include "common/plugins/protocol.h"
#include "sluice/plugin/v1/plugin.pb.h"

// The messages of plugin/v1/plugin.proto as those of protocol.h, by whose rules they are judged.
namespace sluice {

plugin::v1::ScoreItem PluginItemToProto(const nlohmann::json& item);

// INVALID_ARGUMENT: the message is no description, or names no version.
absl::StatusOr<PluginDescription> PluginDescriptionFromProto(
    const plugin::v1::DescribeResponse& message);

// A result that is wrong becomes an error of that result alone.
PluginAnswer PluginAnswerFromProto(const plugin::v1::ScoreResponse& message);

}  // namespace sluice
