#pragma once

namespace sluice::wal {

// The places where a crash test kills the process: before and after each lasting effect of the log,
// in the order in which a log reaches them. The code uses the same names. A test checks that each
// of them is reached.
inline constexpr const char* kFailpoints[] = {
    // "rewrite": Open() writes and syncs the end of the log again.
    "wal.open.rewrite.before",
    "wal.open.rewrite.after",
    "wal.open.cut.before",
    "wal.open.cut.after",  // Open() has cut off the torn end.
    "wal.segment.allocate.before",
    "wal.segment.allocate.after",  // The space of a spare file is allocated.
    // "header": the spare gets its segment header, which is synced.
    "wal.segment.header.before",
    "wal.segment.header.after",
    "wal.segment.rename.before",
    "wal.segment.rename.after",  // The spare has its name as a segment.
    "wal.segment.dirsync.before",
    "wal.segment.dirsync.after",
    "wal.write.before",
    "wal.write.after",  // A batch is written.
    "wal.sync.before",
    "wal.sync.after",  // That batch is synced.
    "wal.mark.before",
    "wal.mark.after",  // The mark after the batch is written.
    "wal.snapshot.write.before",
    "wal.snapshot.write.after",
    "wal.snapshot.sync.before",
    "wal.snapshot.sync.after",
    "wal.snapshot.rename.before",
    "wal.snapshot.rename.after",
    "wal.snapshot.dirsync.before",
    "wal.snapshot.dirsync.after",
    // "recycle": the segments that the snapshot covers become spares.
    "wal.snapshot.recycle.before",
    "wal.snapshot.recycle.after",
};

}  // namespace sluice::wal
