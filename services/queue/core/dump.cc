#include "common/base/status.h"
#include "services/queue/core/codec.h"
#include "services/queue/core/fields.h"
#include "services/queue/core/job.h"

// A job's whole state as bytes. For each class a structured binding names all members, so this file
// does not compile if a class gets a member that is not handled here. Members that are named but
// not passed to the archive are constant, or are computed from the others.
namespace sluice::queue {

SLUICE_FIELDS(StoredPiece, piece, fields)
SLUICE_FIELDS(TaskProgress, state, id, tries, lease, worker, since, not_before, cause, round,
              staged)
SLUICE_FIELDS(GroupMember, state, granted, attempt, lease, worker, since, began, began_at, progress,
              stalls, log, generated, fields, past, field_bytes, finish, sealed_by, sealed_at,
              task_reward, tasks, drop_reason)
SLUICE_FIELDS(Group, id, state, row, own, slot, cut_key, opened, since, wave_began, overdue, prompt,
              members, undrawn, tasks, fields, field_bytes, generation, batch, payload_lost)
SLUICE_FIELDS(LeaseEntry, kind, group, member, task, batch, worker, incarnation, granted, expires,
              limit)
SLUICE_FIELDS(FrozenMember, member, attempt, tokens, trained, masked_count, crc32c, masked, oldest,
              newest, histogram)
SLUICE_FIELDS(FrozenGroup, id, row, size, pool, members)
SLUICE_FIELDS(Batch, k, groups, closed, applied, skipped, crc32c, hash, lease, handed)
SLUICE_FIELDS(LengthBin, sealed, sealed_tokens, trained, trained_tokens)
SLUICE_FIELDS(Counters, fenced, denied, repeats, leases_expired, violations, filtered,
              tokens_dropped, in_flight, in_queue, at_cut, lengths, quarantined, reissued, stalled,
              rescored, shrunk, second_waves, first_waves_only, answers_saved, alarms)
SLUICE_FIELDS(AdmissionWindow::Report, idle, old, duration, span, ess, kl)
SLUICE_FIELDS(GroupResult, step, row, sum, answers, perfect)
SLUICE_FIELDS(RowRest, perfect, until)
SLUICE_FIELDS(SamplerSource, level, drawn, since_step, window, weighted, uniform, visited, rests)
SLUICE_FIELDS(SamplerState, sources, pending, noted)
SLUICE_FIELDS(AdmissionWindow::Mean, sum, count)
SLUICE_FIELDS(AdmissionWindow::State, parts, narrowed, hold, back_off, settle, infeasible, report,
              began, waiting, idle, durations, steps, sealed, generated, old, ess, kl, spans)

// A friend of the classes, so that it can read and set their private members.
struct Access {
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Failures::UnscorableRun> auto& run) {
    auto& [groups, first, source, cause] = run;
    archive(groups, first, source, cause);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Prompts::Progress> auto& progress) {
    auto& [drawn, again, quarantined, sampler] = progress;
    archive(drawn, again, quarantined, sampler);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Prompts> auto& prompts) {
    auto& [seed, epochs, reissues, max_staleness, rest_after, rest_steps, sources, rows, progress,
           quarantined, shuffles, sampler, news] = prompts;
    archive(progress);
    if constexpr (Archive::kReading) {
      if (!prompts.Fits(progress)) {
        progress = Prompts::Progress{.drawn = std::vector<uint64_t>(sources.size())};
        if (sampler != nullptr) progress.sampler.sources.resize(sources.size());
        return archive.Fail();
      }
      if (sampler != nullptr) sampler->Rebuild(progress.sampler.sources);
      prompts.IndexQuarantined();
    }
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<SlotTable> auto& slots) {
    auto& [limit, steps, first, free] = slots;  // The last two are what a search remembers.
    archive(steps);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Branch> auto& branch) {
    auto& [forks] = branch;
    archive(forks);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<TokenLog> auto& log) {
    auto& [pieces, tokens, bytes, logprob_bytes, crc_tokens, crc_logprobs, oldest] = log;
    archive(pieces, tokens, bytes, logprob_bytes, crc_tokens, crc_logprobs, oldest);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<AdmissionWindow> auto& window) {
    auto& [eta, adapts, bounds, state] = window;
    archive(state);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<LeaseTable> auto& leases) {
    auto& [ttl, random, live, by_worker, due, ended, ended_order] = leases;
    uint64_t state = random.state();
    archive(state, live);
    std::vector<std::pair<Id16, LeaseEnd>> ends;
    for (const Id16& id : ended_order) ends.emplace_back(id, ended.at(id));
    archive(ends);
    if constexpr (Archive::kReading) {
      random = SplitMix64(state);
      for (const auto& [id, entry] : live) leases.AddToIndexes(id, entry);
      for (const auto& [id, how] : ends) {
        ended.emplace(id, how);
        ended_order.push_back(id);
      }
    }
  }

  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Engines::Engine> auto& engine) {
    auto& [incarnation, loaded, renewed] = engine;
    archive(incarnation, loaded, renewed);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<ParkedCalls::Call> auto& parked) {
    auto& [call, caller, since, deadline, input] = parked;
    archive(call, caller, since, deadline, input);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<TaskQueue::DeadLetter> auto& letter) {
    auto& [ref, row, task, worker, cause, at, why, generation, state] = letter;
    archive(ref, row, task, worker, cause, at, why, generation, state);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Lineage::Generation> auto& generation) {
    auto& [rewards, steps] = generation;
    archive(rewards, steps);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Lineage> auto& lineage) {
    auto& [generations] = lineage;
    archive(generations);
  }
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<TaskQueue::Key> auto& key) {
    auto& [group, member, task] = key;
    archive(group, member, task);
  }
  // The order of the fields is that of the first format, whichever part of the job holds each of
  // them.
  template <typename Archive>
  static void Fields(Archive& archive, MaybeConst<Job> auto& job) {
    auto& [options, spec, set, revision, phase, queue_incarnation, space, share_bytes, restored,
           restore_answer, replay_end, ledger, counters, staleness, prompts, leases, caller_part,
           engine_part, group_part, task_part, batch_part, lineage, parked_part, admission,
           failure_part, now, effects] = job;
    auto& [listed, fence, trainer_incarnation, kept, caller_counters] = caller_part;
    auto& [ttl, max_span, engines, published, reached, branch] = engine_part;
    auto& [group_spec, groups, next_ordinal, slots, open, unheld, accepted, by_row, reserved_bytes,
           stored_bytes, overdue, stalling] = group_part;
    auto& [task_spec, task_groups, task_leases, ready, delayed, dead_letters, generations,
           generation_seen] = task_part;
    auto& [durable, version, next_cut, durable_hash, batches, freed_rows] = batch_part;
    auto& [calls] = parked_part;
    auto& [failure_spec, failure_prompts, failure_counters, failure_effects, failure,
           rejected_in_a_row, rejected_of_source, starved, unusable, unscorable] = failure_part;
    archive(spec, queue_incarnation, space);
    archive(set, revision, phase, listed, fence, trainer_incarnation, engines, kept, generations,
            generation_seen);
    archive(version, next_cut, restored, restore_answer, published, reached, branch, replay_end,
            durable, durable_hash);
    archive(prompts, slots, leases, next_ordinal, groups, open, unheld, accepted, by_row, ready,
            delayed, dead_letters);
    archive(overdue, stalling, admission, batches, freed_rows, reserved_bytes, stored_bytes,
            share_bytes);
    archive(ledger, counters, staleness, rejected_in_a_row, rejected_of_source, starved, unusable,
            unscorable, failure, calls, lineage, now);
  }
};

template <typename Archive, typename T>
  requires requires(Archive& archive, T& value) { Access::Fields(archive, value); }
void Fields(Archive& archive, T& value) {
  Access::Fields(archive, value);
}

Encoded Job::Dump(Payload payload) const {
  Writer writer(payload);
  writer(*this);
  return std::move(writer).Finish();
}

absl::Status Job::Load(absl::string_view head, std::vector<PayloadRun> payload) {
  Reader reader(head, std::move(payload));
  reader(*this);
  return reader.Finish();
}

}  // namespace sluice::queue
