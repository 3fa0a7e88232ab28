#pragma once

namespace sluice::rpc {

// The HTTP/2 flow-control window of a stream: how many bytes a peer may send before the receiver
// has read them. Client and server both set it, and switch off the library's own measurement (BDP
// probing). With probing the window varies: bulk transfers then cost a sixth more CPU time, and
// small calls beside them wait up to three times as long (bench_queue_throughput).
constexpr int kStreamWindowBytes = 4 << 20;

}  // namespace sluice::rpc
