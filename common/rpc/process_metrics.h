#pragma once

namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {

// The registry that counts the calls of this process's channels, unless a channel is given another.
// Null until it is set: then calls are not counted. Set it before the first channel is made. It
// outlives all channels.
void SetProcessMetrics(metrics::Registry* metrics);
metrics::Registry* ProcessMetrics();

}  // namespace sluice::rpc
