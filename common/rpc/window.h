#pragma once

namespace sluice::rpc {

// What a peer may send on one stream before it is read, in bytes; both ends say so, and leave the
// library's own probing for it off. Probed windows swing: bulk then costs a sixth more CPU, and
// small calls beside it wait three times as long at worst (bench_queue_throughput).
constexpr int kStreamWindowBytes = 4 << 20;

}  // namespace sluice::rpc
