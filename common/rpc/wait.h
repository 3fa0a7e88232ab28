#pragma once

#include "absl/time/time.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"

namespace sluice::rpc {

// Waits for `duration` before a call on the channel is repeated. Returns true at once if `cancel`,
// which may be null, is or becomes triggered.
//
// gRPC works on a connection only while a thread waits inside of it. A process without a server has
// no such thread between its calls, and a call on a broken connection fails at once. If it slept
// here, the TLS handshake of a new connection would go on by a step each five seconds, would often
// reach its limit of 20 s, and would begin again, for ever. So this waits inside of gRPC.
bool WaitToRepeat(const Channel& channel, absl::Duration duration, Cancel* cancel);

}  // namespace sluice::rpc
