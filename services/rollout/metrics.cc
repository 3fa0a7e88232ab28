#include "services/rollout/metrics.h"

#include "common/weights/transport.h"

namespace sluice::rollout {

Metrics::Metrics(metrics::Registry* registry, const std::string& job_name) {
  series = registry->Hold("job_id", job_name);
  const metrics::Labels job = {{"job_id", job_name}};
  const auto labelled = [&](const char* label, const char* value) {
    return metrics::Labels{{"job_id", job_name}, {label, value}};
  };
  const auto requests = [&](const char* state) {
    return registry->AddGauge("sluice_rollout_requests",
                              "Answers that this daemon works on, by state.",
                              labelled("state", state));
  };
  running = requests("running");
  waiting = requests("waiting");
  unsealed = requests("unsealed");
  policy_version =
      registry->AddGauge("sluice_rollout_policy_version", "Number of the version that samples.",
                         labelled("policy", "policy"));
  resident_versions = registry->AddGauge(
      "sluice_rollout_resident_versions",
      "Versions whose weights are held: the newest, and those that answers end with.", job);

  kv_usage = registry->AddGauge("sluice_rollout_kv_cache_usage_ratio",
                                "Share of the KV blocks that running answers hold.");
  const auto phase = [&](const char* name) {
    return registry->AddCounter("sluice_rollout_phase_seconds_total",
                                "Time of the step thread in seconds, by activity.",
                                {{"phase", name}});
  };
  decode_seconds = phase("decode");
  prefill_seconds = phase("prefill");
  activate_seconds = phase("activate");
  idle_seconds = phase("idle");
  unacked_tokens = registry->AddGauge("sluice_rollout_unacked_tokens",
                                      "Sampled tokens that the queue has not acknowledged.", job);
  const auto prompt = [&](const char* source) {
    return registry->AddCounter(
        "sluice_rollout_prompt_tokens_total",
        "Prompt tokens by source: computed, or taken from a group member or the prefix cache.",
        labelled("source", source));
  };
  prompt_computed = prompt("computed");
  prompt_cached = prompt("cached");
  preemptions = registry->AddCounter(
      "sluice_rollout_preemptions_total",
      "Answers that gave up their KV blocks and wait to compute them again.", job);
  tokens_generated =
      registry->AddCounter("sluice_rollout_tokens_generated_total", "Tokens sampled.", job);
  tokens_resumed =
      registry->AddCounter("sluice_rollout_tokens_resumed_total",
                           "Tokens of the prefixes that answers were continued from.", job);
  tokens_regenerated =
      registry->AddCounter("sluice_rollout_tokens_regenerated_total",
                           "Tokens that are sampled again, because the answer was lost here before "
                           "the queue had them.",
                           labelled("reason", "lease_lost"));
  const auto finished = [&](const char* reason) {
    return registry->AddCounter("sluice_rollout_finished_total", "Answers that ended, by reason.",
                                labelled("reason", reason));
  };
  finished_stop = finished("stop");
  finished_length = finished("length");
  dropped = finished("dropped");
  abandoned = finished("abandoned");
  migrated = registry->AddCounter("sluice_rollout_migrated_total",
                                  "Answers given back after their second preemption, for another "
                                  "worker to continue.",
                                  job);
  resumed = registry->AddCounter("sluice_rollout_resumed_total",
                                 "Answers that were continued from a prefix.", job);
  nonfinite = registry->AddCounter("sluice_rollout_nonfinite_rows_total",
                                   "Rows of logits that were not finite.", job);
  decode_step = registry->AddHistogram("sluice_rollout_decode_step_duration_seconds",
                                       "Time of one engine step.", metrics::RpcSeconds());
  response_tokens = registry->AddHistogram("sluice_rollout_response_tokens", "Tokens of an answer.",
                                           metrics::Tokens(), job);
  turn = registry->AddHistogram("sluice_rollout_turn_duration_seconds",
                                "Time from the grant of an answer to its last token.",
                                metrics::LongSeconds(), labelled("environment", "single_turn"));

  const auto update = [&](const char* name) {
    return registry->AddHistogram("sluice_weights_update_duration_seconds",
                                  "Time of a weight update, by phase.", metrics::LongSeconds(),
                                  labelled("phase", name));
  };
  fetch = update("fetch");
  room = update("room");
  pause = update("pause");
  verify = update("verify");
  const auto bytes = [&](const char* kind) {
    return registry->AddCounter("sluice_weights_bytes_total",
                                "Bytes of weights, by what was done with them.",
                                labelled("kind", kind));
  };
  fetched_bytes = bytes("fetched");
  relayed_bytes = bytes("relayed");
  for (const TransportCaps& transport : {kGrpcCaps, kShmCaps, kFileCaps, kC10dCaps, kUcxCaps}) {
    const std::string name(transport.name);
    transport_bytes[name] = registry->AddCounter(
        "sluice_weights_transport_bytes_total",
        "Bytes of manifests and chunks that were received whole and right, by transport.",
        labelled("transport", name.c_str()));
  }
  parent_changes = registry->AddCounter(
      "sluice_weights_parent_changes_total",
      "Holders of weights that were left for another, because they failed, were slow or lied.",
      job);
  const auto failures = [&](const char* stage) {
    return registry->AddCounter("sluice_weights_verify_failures_total",
                                "Versions whose bytes were not those that were published, by where "
                                "this was found.",
                                labelled("stage", stage));
  };
  damaged_downloads = failures("fetch");
  refused_activations = failures("activate");
  damaged_weights = failures("rest");
  suspect_tokens = registry->AddCounter(
      "sluice_weights_suspect_tokens_total",
      "Tokens sampled since weights that were found damaged in memory were last found right.", job);

  rescore_gap = registry->AddHistogram(
      "sluice_rollout_rescore_gap_nats",
      "Mean distance between a sealed answer's log-probs and those of a new prefill.",
      metrics::Nats(), job);
}

void Metrics::CountTransports(const std::map<std::string, uint64_t>& bytes) const {
  for (const auto& [transport, count] : bytes) {
    const auto it = transport_bytes.find(transport);
    if (it != transport_bytes.end()) it->second.Add(static_cast<double>(count));
  }
}

}  // namespace sluice::rollout
