#pragma once

#include "services/queue/core/archive.h"
#include "services/queue/core/event.h"

// The fields of the queue's nouns, events and answers, in the order of their structs. See
// archive.h.
namespace sluice::queue {

SLUICE_FIELDS(PolicyVersion, incarnation, number)
SLUICE_FIELDS(VersionRun, version, count, policy)

SLUICE_FIELDS(GroupId, incarnation, ordinal)
SLUICE_FIELDS(TrajectoryRef, group, member, attempt)
SLUICE_FIELDS(RowRef, source, epoch, index, occurrence)
SLUICE_FIELDS(Row, ref, source, json)
SLUICE_FIELDS(Sampling, temperature, top_p, min_p, top_k, max_tokens, min_tokens, stop, stop_ids,
              ignore_eos)
SLUICE_FIELDS(SourceSpec, name, path, weight, fields)
SLUICE_FIELDS(TaskSpec, name, needs, produces, granularity, pool, deadline, tries)
SLUICE_FIELDS(Worker, id, role, incarnation)
SLUICE_FIELDS(Loaded, policy, version, verified)
SLUICE_FIELDS(Lease, id, ttl)
SLUICE_FIELDS(Field, name, dtype, shape, rows, round, bytes)
SLUICE_FIELDS(Piece, at, segment, parent, role, turn, count, trainable, runs, duration)
SLUICE_FIELDS(Record, owner, task, lease, piece, fields, last)
SLUICE_FIELDS(TokenRun, first, count)
SLUICE_FIELDS(Node, kind, id, daemon)
SLUICE_FIELDS(WaitEdge, waiter, on, since, cause, next, next_in, hint)
SLUICE_FIELDS(Ledger, accepted, durable, applied, live, dropped, tokens_generated, tokens_trained,
              tokens_masked, durable_version, hash, event)

SLUICE_FIELDS(Caller, worker, incarnation)
SLUICE_FIELDS(SetJob, revision, spec, phase, workers)
SLUICE_FIELDS(SetJobAnswer, repeat, incarnation, version, restored, ledger)
SLUICE_FIELDS(Admit, request, room, own, wait)
SLUICE_FIELDS(Member, member, attempt, lease, prefix)
SLUICE_FIELDS(Grant, group, step, row, seed, size, members, overdue)
SLUICE_FIELDS(AdmitAnswer, repeat, grants, phase, edge)
SLUICE_FIELDS(Put, records)
SLUICE_FIELDS(Failed, record, status, watermark)
SLUICE_FIELDS(PutAnswer, failed, repeats)
SLUICE_FIELDS(Item, status, watermark, repeat)
SLUICE_FIELDS(SealItem, ref, lease, tokens, crc32c, finish, turns)
SLUICE_FIELDS(Seal, items)
SLUICE_FIELDS(DropItem, ref, lease, reason)
SLUICE_FIELDS(Drop, items)
SLUICE_FIELDS(ItemsAnswer, repeat, items)
SLUICE_FIELDS(Room, pool, count)
SLUICE_FIELDS(LeaseTasks, request, rooms, generation, wait, earlier, rewards)
SLUICE_FIELDS(TaskGrant, id, name, owner, members, row, lease, wants, fields, finish, finishes,
              round, tries, deadline, generation)
SLUICE_FIELDS(LeaseTasksAnswer, repeat, tasks, edge, unused)
SLUICE_FIELDS(Renew, leases, loaded)
SLUICE_FIELDS(RenewAnswer, lost, ttl)
SLUICE_FIELDS(Release, leases, worker, incarnation, reason, not_before, cause)
SLUICE_FIELDS(ReleaseAnswer, repeat, released)
SLUICE_FIELDS(AcquireBatch, k, from, stream, wait)
SLUICE_FIELDS(BatchMember, member, attempt, tokens, trained, crc32c, masked, oldest, newest, finish,
              fields)
SLUICE_FIELDS(BatchGroup, group, row, size, pool, members)
SLUICE_FIELDS(AcquireBatchAnswer, repeat, filled, k, lease, from, groups, closed, size, crc32c,
              edge)
SLUICE_FIELDS(Apply, k, lease, crc32c, skipped, want_cursor, ess, kl)
SLUICE_FIELDS(ApplyAnswer, repeat, version, ledger, cursor)
SLUICE_FIELDS(AdvanceVersion, policy, expected, next)
SLUICE_FIELDS(AdvanceVersionAnswer, repeat, current)
SLUICE_FIELDS(Durable, version, checkpoint, hash)
SLUICE_FIELDS(DurableAnswer, repeat)
SLUICE_FIELDS(Restore, cursor, checkpoint, mode)
SLUICE_FIELDS(RestoreAnswer, repeat, mode, version, end, fork, published, ledger)
void Fields(auto& archive, MaybeConst<Tick> auto& none) {}
void Fields(auto& archive, MaybeConst<CallerGone> auto& none) {}
SLUICE_FIELDS(MemoryShare, bytes)
SLUICE_FIELDS(Retask, mode, task, generation, groups)
SLUICE_FIELDS(RetaskAnswer, count)
SLUICE_FIELDS(Restarted, incarnation)
SLUICE_FIELDS(DiskSpace, space)
SLUICE_FIELDS(Event, now, call, caller, input)

}  // namespace sluice::queue
