#include "common/meta/sqlite.h"

#include <sqlite3.h>

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice::meta {
namespace {

constexpr int kApplicationId = 0x534c4943;  // "SLIC": marks the file as Sluice's.
constexpr int kFormat = 1;                  // PRAGMA user_version.

absl::Status SqliteError(sqlite3* db, int code, absl::string_view what) {
  const std::string message =
      absl::StrCat(what, ": ", db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return ErrorWith(absl::StatusCode::kResourceExhausted,
                       {"DISK_FULL", "SLUICE-META-0002", "free space on the controller's disk",
                        absl::Seconds(1)},
                       message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return ErrorWith(absl::StatusCode::kDataLoss,
                       {"STORE_DAMAGED", "SLUICE-META-0003",
                        "put the file back from a copy, or move it away to start empty"},
                       message);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return ErrorWith(
          absl::StatusCode::kFailedPrecondition,
          {"STORE", "SLUICE-META-0004", "give the controller a folder that it may write"}, message);
    default:
      return ErrorWith(absl::StatusCode::kUnavailable,
                       {"STORE_AWAY", "SLUICE-META-0005", "", absl::Seconds(1)}, message);
  }
}

// A prepared statement. Reset() it after each use.
class Statement {
 public:
  Statement() = default;
  ~Statement() { sqlite3_finalize(stmt_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  absl::Status Prepare(sqlite3* db, const char* sql) {
    db_ = db;
    const int code = sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt_, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : SqliteError(db, code, sql);
  }
  // `bytes` must stay valid until Reset(). Places count from 1.
  void Bind(int place, absl::string_view bytes) {
    // A null pointer would bind NULL, which is not the empty string.
    sqlite3_bind_blob64(stmt_, place, bytes.data() == nullptr ? "" : bytes.data(), bytes.size(),
                        SQLITE_STATIC);
  }
  void Bind(int place, int64_t number) { sqlite3_bind_int64(stmt_, place, number); }
  // Returns whether there is another row.
  absl::StatusOr<bool> Step() {
    const int code = sqlite3_step(stmt_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return SqliteError(db_, code, sqlite3_sql(stmt_));
  }
  std::string Bytes(int column) {
    // This call converts the value to a blob. It comes first, because sqlite3_column_bytes() gives
    // the size after the last conversion.
    const void* data = sqlite3_column_blob(stmt_, column);
    const int size = sqlite3_column_bytes(stmt_, column);
    return size == 0 ? std::string() : std::string(static_cast<const char*>(data), size);
  }
  int64_t Number(int column) { return sqlite3_column_int64(stmt_, column); }
  void Reset() {
    sqlite3_reset(stmt_);
    sqlite3_clear_bindings(stmt_);
  }
  // Runs a statement that returns no rows, and resets it.
  absl::Status Run() {
    const absl::StatusOr<bool> row = Step();
    Reset();
    return row.status();
  }

 private:
  sqlite3* db_ = nullptr;
  sqlite3_stmt* stmt_ = nullptr;
};

class Connection {
 public:
  Connection() = default;
  ~Connection() { sqlite3_close_v2(db_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status Open(const std::string& path) {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    const int code = sqlite3_open_v2(path.c_str(), &db_, flags, nullptr);
    if (code != SQLITE_OK) return SqliteError(db_, code, path);
    sqlite3_busy_timeout(db_, 2000);
    sqlite3_extended_result_codes(db_, 1);
    return absl::OkStatus();
  }
  absl::Status Exec(const std::string& sql) {
    const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : SqliteError(db_, code, sql);
  }
  absl::StatusOr<int64_t> QueryNumber(const char* sql) {
    Statement statement;
    SLUICE_RETURN_IF_ERROR(statement.Prepare(db_, sql));
    SLUICE_ASSIGN_OR_RETURN(const bool row, statement.Step());
    return row ? statement.Number(0) : 0;
  }
  sqlite3* get() { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

// A string above all keys that begin with `prefix`, and below all other keys that follow them.
std::string PrefixEnd(absl::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  // No key follows. One has at most 512 bytes.
  if (end.empty()) return std::string(513, '\xff');
  end.back() = static_cast<char>(end.back() + 1);
  return end;
}

class SqliteStore : public Store {
 public:
  absl::Status Init(const std::string& path) {
    MutexLock write(&write_mu_);
    SLUICE_RETURN_IF_ERROR(Annotate(writer_.Open(path), path));
    SLUICE_RETURN_IF_ERROR(Annotate(Prepare(path), path));
    MutexLock read(&read_mu_);
    SLUICE_RETURN_IF_ERROR(Annotate(reader_.Open(path), path));
    SLUICE_RETURN_IF_ERROR(list_.Prepare(reader_.get(),
                                         "SELECT key, value, revision FROM kv WHERE key >= ?1 AND "
                                         "key < ?2 ORDER BY key LIMIT ?3"));
    return get_.Prepare(reader_.get(), "SELECT value, revision FROM kv WHERE key = ?1");
  }

  absl::StatusOr<Entry> Get(absl::string_view key) override {
    MutexLock lock(&read_mu_);
    get_.Bind(1, key);
    const absl::StatusOr<bool> row = get_.Step();
    absl::StatusOr<Entry> entry =
        absl::NotFoundError(absl::StrCat("no key ", key, " in the job store"));
    if (!row.ok()) entry = row.status();
    if (row.ok() && *row) entry = Entry{std::string(key), get_.Bytes(0), get_.Number(1)};
    get_.Reset();
    return entry;
  }

  absl::StatusOr<std::vector<Entry>> List(absl::string_view prefix, absl::string_view after,
                                          int limit) override {
    // With one bound on each side, SQLite reads the wanted keys alone. With a further condition on
    // the key it would read all that follow too, until it has found `limit` of them.
    const std::string begin =
        after < prefix ? std::string(prefix) : absl::StrCat(after, absl::string_view("\0", 1));
    const std::string end = PrefixEnd(prefix);
    MutexLock lock(&read_mu_);
    list_.Bind(1, absl::string_view(begin));
    list_.Bind(2, absl::string_view(end));
    // SQLite takes a negative limit as none.
    list_.Bind(3, limit > 0 ? int64_t{limit} : int64_t{-1});
    std::vector<Entry> entries;
    absl::StatusOr<bool> row = list_.Step();
    for (; row.ok() && *row; row = list_.Step())
      entries.push_back({list_.Bytes(0), list_.Bytes(1), list_.Number(2)});
    list_.Reset();
    if (!row.ok()) return row.status();
    return entries;
  }

  // Group commit. A caller that finds no leader becomes the leader: it takes all waiting
  // transactions, commits them together and wakes their callers. Transactions that arrive meanwhile
  // wait, and one of their callers becomes the next leader.
  absl::StatusOr<int64_t> Txn(std::vector<Compare> compares, std::vector<Op> ops) override {
    for (const Op& op : ops) SLUICE_RETURN_IF_ERROR(internal::CheckSizes(op));
    Pending mine{&compares, &ops};
    queue_mu_.Lock();
    queue_.push_back(&mine);
    while (!mine.done && has_leader_) answered_.Wait(&queue_mu_);
    if (mine.done) {
      queue_mu_.Unlock();
      return mine.result;
    }

    has_leader_ = true;
    std::vector<Pending*> batch(queue_.begin(), queue_.end());
    queue_.clear();
    queue_mu_.Unlock();

    std::vector<absl::StatusOr<int64_t>> results = CommitBatch(batch);

    queue_mu_.Lock();
    for (size_t i = 0; i < batch.size(); ++i) {
      batch[i]->result = std::move(results[i]);
      batch[i]->done = true;
    }
    // A leader's own transaction waits like the others, so it was in the batch.
    SLUICE_CHECK(mine.done);
    has_leader_ = false;
    answered_.NotifyAll();
    queue_mu_.Unlock();
    return mine.result;
  }

 private:
  // A transaction that waits for its commit. It lies on the stack of its caller.
  struct Pending {
    const std::vector<Compare>* compares;
    const std::vector<Op>* ops;
    absl::StatusOr<int64_t> result = absl::UnknownError("not committed");
    bool done = false;
  };

  // Checks that the file is Sluice's, creates the tables of a new one, and prepares the statements
  // of the writer.
  absl::Status Prepare(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t application,
                            writer_.QueryNumber("PRAGMA application_id"));
    SLUICE_ASSIGN_OR_RETURN(const int64_t format, writer_.QueryNumber("PRAGMA user_version"));
    SLUICE_ASSIGN_OR_RETURN(const int64_t tables,
                            writer_.QueryNumber("SELECT count(*) FROM sqlite_master"));

    if (tables > 0 && application != kApplicationId) {
      return ErrorWith(absl::StatusCode::kFailedPrecondition,
                       {.reason = "STORE",
                        .hint = "give the controller another --data-dir, or move the file away"},
                       "this SQLite file belongs to another program");
    }

    if (format > kFormat) {
      return ErrorWith(
          absl::StatusCode::kFailedPrecondition,
          {"STORE", "SLUICE-META-0006", "run the build that wrote the file, or a newer one"},
          absl::StrCat("the file has format ", format, "; this build reads formats up to ",
                       kFormat));
    }

    SLUICE_RETURN_IF_ERROR(writer_.Exec("PRAGMA journal_mode=WAL"));
    SLUICE_RETURN_IF_ERROR(writer_.Exec("PRAGMA synchronous=FULL"));
    // A new file: the tables and the format are committed together.
    if (tables == 0) {
      SLUICE_RETURN_IF_ERROR(
          writer_.Exec(absl::StrCat("BEGIN IMMEDIATE;"
                                    "CREATE TABLE kv (key BLOB PRIMARY KEY, value BLOB NOT NULL, "
                                    "revision INTEGER NOT NULL) WITHOUT ROWID;"
                                    "CREATE TABLE counter (revision INTEGER NOT NULL);"
                                    "INSERT INTO counter VALUES (0);"
                                    "PRAGMA application_id=",
                                    kApplicationId, ";PRAGMA user_version=", kFormat, ";COMMIT")));
    }

    SLUICE_ASSIGN_OR_RETURN(revision_, writer_.QueryNumber("SELECT revision FROM counter"));
    SLUICE_RETURN_IF_ERROR(
        get_revision_.Prepare(writer_.get(), "SELECT revision FROM kv WHERE key = ?1"));
    SLUICE_RETURN_IF_ERROR(
        put_.Prepare(writer_.get(), "INSERT OR REPLACE INTO kv VALUES (?1, ?2, ?3)"));
    SLUICE_RETURN_IF_ERROR(delete_.Prepare(writer_.get(), "DELETE FROM kv WHERE key = ?1"));
    return set_revision_.Prepare(writer_.get(), "UPDATE counter SET revision = ?1");
  }

  // Commits the transactions of `batch` together. Returns one result for each: either its own, or
  // the same error for all.
  std::vector<absl::StatusOr<int64_t>> CommitBatch(const std::vector<Pending*>& batch) {
    MutexLock lock(&write_mu_);
    // If the batch fails, revision_ is set back to this.
    const int64_t before = revision_;
    std::vector<absl::StatusOr<int64_t>> results;

    absl::Status status = writer_.Exec("BEGIN IMMEDIATE");
    for (Pending* pending : batch) {
      if (!status.ok()) break;
      results.push_back(RunTransaction(*pending->compares, *pending->ops, &status));
    }

    if (status.ok() && revision_ != before) {
      set_revision_.Bind(1, revision_);
      status = set_revision_.Run();
    }
    if (status.ok()) status = writer_.Exec("COMMIT");

    if (!status.ok()) {
      if (sqlite3_get_autocommit(writer_.get()) == 0) (void)writer_.Exec("ROLLBACK");
      revision_ = before;
      results.assign(batch.size(), status);
    }
    SLUICE_CHECK(results.size() == batch.size());
    return results;
  }

  // Runs one transaction of a batch. A compare that does not hold fails this transaction alone;
  // `*fatal` is set if the whole batch must fail.
  absl::StatusOr<int64_t> RunTransaction(const std::vector<Compare>& compares,
                                         const std::vector<Op>& ops, absl::Status* fatal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    for (const Compare& compare : compares) {
      get_revision_.Bind(1, absl::string_view(compare.key));
      const absl::StatusOr<bool> row = get_revision_.Step();
      const int64_t current = row.ok() && *row ? get_revision_.Number(0) : 0;
      get_revision_.Reset();
      if (!row.ok()) return *fatal = row.status();
      if (current != compare.revision) return internal::LostRaceError(compare, current);
    }

    if (ops.empty()) return revision_;
    ++revision_;
    for (const Op& op : ops) {
      Statement& statement = op.value ? put_ : delete_;
      statement.Bind(1, absl::string_view(op.key));
      if (op.value) {
        statement.Bind(2, absl::string_view(*op.value));
        statement.Bind(3, revision_);
      }
      if (absl::Status done = statement.Run(); !done.ok()) return *fatal = done;
    }
    return revision_;
  }

  Mutex queue_mu_;
  CondVar answered_;
  std::deque<Pending*> queue_ ABSL_GUARDED_BY(queue_mu_);
  // A leader is at work.
  bool has_leader_ ABSL_GUARDED_BY(queue_mu_) = false;

  Mutex write_mu_;  // Held by the leader; never together with queue_mu_.
  Connection writer_ ABSL_GUARDED_BY(write_mu_);
  Statement get_revision_, put_, delete_, set_revision_ ABSL_GUARDED_BY(write_mu_);
  int64_t revision_ ABSL_GUARDED_BY(write_mu_) = 0;

  Mutex read_mu_ ABSL_ACQUIRED_AFTER(write_mu_);
  Connection reader_ ABSL_GUARDED_BY(read_mu_);
  Statement get_, list_ ABSL_GUARDED_BY(read_mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqlite(const std::string& path) {
  auto store = std::make_unique<SqliteStore>();
  SLUICE_RETURN_IF_ERROR(store->Init(path));
  return store;
}

}  // namespace sluice::meta
