#pragma once

// How both ends of a connection find out that the other one has vanished without a word.
namespace sluice::rpc {

// A ping is sent when nothing has come for this long while a call is open. The connection is closed
// if its answer does not come in time, or if sent bytes are not acknowledged in that time, because
// gRPC sets TCP_USER_TIMEOUT to it.
//
// TCP itself would wait: after an outage of 20 s it sends again only after 5 s or more, because its
// pauses double. Over a slow network the answer may stand behind megabytes of payload, so the time
// for it is not shorter.
inline constexpr int kPingAfterMs = 10'000;
inline constexpr int kPingTimeoutMs = 10'000;

}  // namespace sluice::rpc
