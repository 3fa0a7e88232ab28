#pragma once

#include "common/weights/version_health.h"
#include "common/weights/weight_source.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {

weights::v1::Latest ToProto(const PublishedVersion& latest);
weights::v1::VersionNode ToProto(const WeightEdge& edge);
weights::v1::VersionHealth ToProto(const VersionHealth& health);

}  // namespace sluice
