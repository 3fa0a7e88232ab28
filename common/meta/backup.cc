#include "common/meta/backup.h"

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::meta {
namespace {

constexpr char kMagic[] = "sluice-meta 1\n";
constexpr char kAnyMagic[] = "sluice-meta ";
// Is there while a restore is under way. No other key of the store begins so.
constexpr char kRestoringKey[] = "restoring";
// Of one transaction, which must not take a slow store longer than its time limit.
constexpr size_t kOpsPerTxn = 500, kBytesPerTxn = 1 << 20;
constexpr int kTries = 10;
constexpr absl::Duration kTryAgain = absl::Milliseconds(500);

template <typename T>
void AppendNumber(T number, std::string* out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &number, sizeof(T));
  out->append(bytes, sizeof(T));
}

// Takes a number from the front. False: there are too few bytes.
template <typename T>
bool TakeNumber(absl::string_view* bytes, T* number) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(number, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return true;
}

bool TakeText(absl::string_view* bytes, size_t size, std::string* text) {
  if (bytes->size() < size) return false;
  *text = std::string(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return true;
}

absl::Status DamagedError(absl::string_view how) {
  return ErrorWith(absl::StatusCode::kDataLoss,
                   {.reason = "BAD_CRC",
                    .catalogue = "SLUICE-META-0013",
                    .hint = "take another copy of the backup"},
                   absl::StrCat("the backup of a job store is damaged: ", how));
}

// Repeats a transaction while the store is away for a moment. One that was done is not done again.
absl::Status Commit(Store& store, std::vector<Op>* ops) {
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    status = store.Txn({}, *ops).status();
    if (!absl::IsUnavailable(status)) break;
    absl::SleepFor(kTryAgain);
  }
  ops->clear();
  return status;
}

}  // namespace

std::string EncodeBackup(const std::vector<Entry>& entries) {
  std::string out = kMagic;
  for (const Entry& entry : entries) {
    AppendNumber(static_cast<uint32_t>(entry.key.size()), &out);
    AppendNumber(static_cast<uint32_t>(entry.value.size()), &out);
    absl::StrAppend(&out, entry.key, entry.value);
  }
  AppendNumber(uint32_t{0}, &out);
  AppendNumber(uint64_t{entries.size()}, &out);
  AppendNumber(Crc32c(out), &out);
  return out;
}

absl::StatusOr<std::vector<Entry>> DecodeBackup(absl::string_view bytes) {
  const absl::string_view all = bytes;
  if (!absl::ConsumePrefix(&bytes, kMagic)) {
    const bool newer = absl::StartsWith(bytes, kAnyMagic);
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "STORE",
                      .catalogue = "SLUICE-META-0014",
                      .hint = newer ? "run the build that wrote it, or a newer one"
                                    : "name a file that `sluice meta backup` wrote"},
                     newer ? "the backup of a job store has a format that this build does not read"
                           : "the file is no backup of a job store");
  }

  std::vector<Entry> entries;
  while (true) {
    uint32_t key_size = 0, value_size = 0;
    if (!TakeNumber(&bytes, &key_size)) return DamagedError("it is cut off");
    if (key_size == 0) break;
    Entry entry;
    if (!TakeNumber(&bytes, &value_size) || !TakeText(&bytes, key_size, &entry.key) ||
        !TakeText(&bytes, value_size, &entry.value)) {
      return DamagedError("it is cut off");
    }
    entries.push_back(std::move(entry));
  }

  uint64_t count = 0;
  uint32_t crc = 0;
  if (!TakeNumber(&bytes, &count)) return DamagedError("it is cut off");
  const uint32_t computed = Crc32c(all.substr(0, all.size() - bytes.size()));
  if (!TakeNumber(&bytes, &crc)) return DamagedError("it is cut off");
  if (crc != computed || count != entries.size() || !bytes.empty())
    return DamagedError("its checksum is not that of its content");
  return entries;
}

absl::Status RestoreBackup(Store& store, const std::vector<Entry>& entries, bool replace) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Entry> present, store.List(""));
  if (!present.empty() && !replace) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "NOT_EMPTY",
                      .catalogue = "SLUICE-META-0015",
                      .hint = "name an empty store, or give --yes to replace what is there"},
                     absl::StrCat("the job store has ", present.size(), " entries already"));
  }

  std::vector<Op> ops = {{kRestoringKey, ""}};
  SLUICE_RETURN_IF_ERROR(Commit(store, &ops));
  size_t bytes = 0;
  const auto add = [&](Op op) -> absl::Status {
    bytes += op.key.size() + (op.value ? op.value->size() : 0);
    ops.push_back(std::move(op));
    if (ops.size() < kOpsPerTxn && bytes < kBytesPerTxn) return absl::OkStatus();
    bytes = 0;
    return Commit(store, &ops);
  };
  for (const Entry& entry : present) {
    if (entry.key != kRestoringKey) SLUICE_RETURN_IF_ERROR(add({entry.key, std::nullopt}));
  }
  for (const Entry& entry : entries) SLUICE_RETURN_IF_ERROR(add({entry.key, entry.value}));
  ops.push_back({kRestoringKey, std::nullopt});
  return Commit(store, &ops);
}

absl::StatusOr<bool> IsHalfRestored(Store& store) {
  const absl::StatusOr<Entry> mark = store.Get(kRestoringKey);
  if (absl::IsNotFound(mark.status())) return false;
  SLUICE_RETURN_IF_ERROR(mark.status());
  return true;
}

}  // namespace sluice::meta
