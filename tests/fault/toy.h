#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/queue_client/queue_client.h"
#include "sluice/queue/v1/queue.pb.h"

// A training job without a model, whose processes may be killed at any moment. They take the parts
// of rollout, reward and trainer, with the same client library as the real ones. Everything they
// write is a function of what it is written for, so that each reader can tell whether it is right;
// the trainer's "weights" are a hash over every byte that it trained on. Each process logs what it
// asks and what it is told (History), and judge.h compares these logs afterwards.
namespace sluice::fault {

inline constexpr char kJob[] = "00000000000000000000000000000fab";
inline constexpr int kPromptTokens = 4;
inline constexpr int kPieces = 3;            // Of a member; 2 to 4 tokens each.
inline constexpr int64_t kUnbounded = 1000;  // A max_staleness that nothing reaches.
// Exit code of a trainer whose batch the queue has lost: it must be started anew at its checkpoint.
inline constexpr int kRestoreMe = 3;

// The spec of a job of the matrix.
queue::v1::QueueSpec ToySpec(const std::string& data, uint32_t max_staleness,
                             std::string durability);

// The columns of `count` tokens of a member, from place `at`. Those of the prompt depend on the
// group only.
std::string Tokens(absl::string_view group, int member, uint64_t at, uint64_t count);
std::string Logprobs(absl::string_view group, int member, uint64_t at, uint64_t count);
// Where each piece of a member ends, counted from the beginning of the prompt.
std::vector<uint64_t> PieceEnds(absl::string_view group, int member);

struct RoleOptions {
  std::string role;    // rollout | reward | trainer
  std::string queue;   // HOST:PORT
  std::string worker;  // Daemon id.
  int64_t incarnation = 0;
  std::string dir;  // Of the run. It has histories, the checkpoint, and at the end a file `stop`.
  int64_t max_staleness = 0;
  std::string durability = "full";
  int64_t checkpoint_every = 0;
};

// Each of these runs until it is killed, or returns what is wrong.
absl::Status RunRollout(const RoleOptions& options);
absl::Status RunReward(const RoleOptions& options);
// OK: it found DIR/stop after a checkpoint. NOT_FOUND, reason GONE: the queue has lost the batch
// (not at durability `full`).
absl::Status RunTrainer(const RoleOptions& options);

// A toy checkpoint: the file DIR/checkpoint, written whole or not at all.
struct Checkpoint {
  int64_t version = 0;
  std::string weights = std::string(32, '\0');
  std::string cursor;
};
absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& dir);  // None yet: version 0.
absl::Status SaveCheckpoint(const std::string& dir, const Checkpoint& checkpoint);

// The weights after step k, whose batch has this digest.
std::string NextWeights(const std::string& weights, int64_t k, const std::string& digest);

// The log of one process. A line is "<monotonic ns> <what> ..". It is written whole before Log()
// returns, so that it outlives the process:
//   ask admit | grant T ATTEMPT PREFIX | put T ATTEMPT END | seal T ATTEMPT | score T
//   restore VERSION END | ask apply K | train K DIGEST CANONICAL H | durable VERSION
// T is "<group in hex>.<member>". PREFIX is the number of tokens that the queue already has, and
// the END of a put is the place where the piece ends. After a restore, the steps from VERSION to
// END - 1 come again. DIGEST is a hash of all bytes of batch K, CANONICAL the bytes of its list
// that the ledger hashes, and H the ledger's hash after step K. Lines with `ask` are written before
// the call, all others after the queue has acknowledged it.
class History {
 public:
  History(const std::string& dir, const std::string& worker, int64_t incarnation);
  ~History();
  void Log(const std::string& line);
  // Tells the matrix over stdout, once, that the process does its work.
  void Ready();

 private:
  int fd_ = -1;
  bool ready_ = false;
};

// A client that retries fast.
std::unique_ptr<QueueClient> Connect(const RoleOptions& options);

}  // namespace sluice::fault
