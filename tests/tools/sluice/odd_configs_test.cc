// Job files with mistakes that people make, through the real `sluice config validate`. Each is
// refused or warned of before a daemon starts, or is right. A row is a change to
// configs/examples/digits.yaml.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"

namespace sluice {
namespace {

enum class Outcome { kRefused, kWarned, kRight };
using enum Outcome;

struct Case {
  const char* name;
  // Words with a space between them. KEY=VALUE becomes a --set, in which DIR stands for the folder
  // of the test's files and DIGITS for the example's. "FROM -> TO" replaces text of the job file
  // instead.
  const char* change;
  Outcome outcome;
  const char* message = "";  // What stderr must contain.
};

const Case kCases[] = {
    // Keys and the form of the file.
    {"a misspelt key", "max_steps: -> max_stepz:", kRefused,
     R"(unknown key "max_stepz" in limits. Did you mean "max_steps"?)"},
    {"a key in the wrong block", "max_staleness: 2 -> lr: 1e-3", kRefused,
     R"(unknown key "lr" in queue. Did you mean "trainer.optimizer.lr"?)"},
    {"a key of another framework", "run: {seed: 1} -> learning_rate: 1e-3", kRefused,
     R"(unknown key "learning_rate" in the job file)"},
    {"a key twice", "kind: rl -> name: other", kRefused, "duplicate key \"name\""},
    {"an anchor", "name: digits -> name: &n digits", kRefused, "job files have no anchors"},
    {"a variable of the shell", "name: digits -> name: ${USER}", kRefused,
     "job files have no substitution"},
    {"no YAML", "run: {seed: 1} -> run: {seed: 1", kRefused, "SLUICE-CONFIG-0001 not YAML"},
    {"another version of the format", "api=sluice/v2", kRefused,
     R"(api is "sluice/v2", wants sluice/v1)"},
    {"a block where a list belongs", "data.train={name: a, path: b}", kRefused,
     "data.train wants a list, has a block"},
    {"a word where a block belongs", "model=qwen", kRefused, "model wants a block of keys"},
    {"a --set without a value", "nonsense", kRefused, "want KEY=VALUE"},

    // Types, units and bounds.
    {"yes for true", "run.deterministic=yes", kRefused, "write true or false"},
    {"a number in quotes", "lr: 1e-3 -> lr: \"1e-3\"", kRefused,
     "trainer.optimizer.lr wants a number"},
    {"half a token", "rollout.max_response=5.5", kRefused, "wants a whole number from 0 on"},
    {"a negative group", "rollout.group.size=-4", kRefused, "wants a whole number from 0 on"},
    {"no group", "rollout.group.size=0", kRefused, "rollout.group.size is 0, but the minimum is 1"},
    {"a learning rate that is no number", "trainer.optimizer.lr=nan", kRefused,
     "wants a finite number"},
    {"an endless learning rate", "trainer.optimizer.lr=inf", kRefused, "wants a finite number"},
    {"a duration without a unit", "limits.wall=30", kRefused, "needs a unit: ms, s, m, h or d"},
    {"no time", "limits.start=0s", kRefused, "limits.start is 0s, wants more than 0s"},
    {"ten thousand years", "limits.wall=87600000h", kRefused, "is more than 100 years"},
    {"a size in GB", "queue.keep.quota=8GB", kRefused, "the units are B, KiB, MiB, GiB and TiB"},
    {"no steps", "limits.max_steps=0", kRefused,
     "limits.max_steps is 0, but the minimum is 1, or none"},
    {"more steps than can be counted", "limits.max_steps=1e15", kRefused,
     "but the maximum is 1e12"},
    {"a priority beyond the scale", "run.priority=1000", kRefused,
     "run.priority is 1000, but the maximum is 100"},
    {"a name with capitals", "name=Digits", kRefused, "wants 1 to 63 lower-case letters"},
    {"an empty name", "name=\"\"", kRefused, "name is missing"},
    {"no data", "data.train=[]", kRefused,
     "data.train is missing: The data sources; at least one."},
    {"a source without a path", "data.train=[{name: a}]", kRefused, "data.train.0.path is missing"},

    // Words that mean nothing, or that this build does not support.
    {"a kind that is none", "kind=rll", kRefused,
     R"(kind is "rll", wants rl, sft, dpo. Did you mean "rl"?)"},
    {"dpo without a reference", "kind=dpo", kRefused,
     "model.reference is none, but dpo compares the policy with its reference; set it to initial"},
    {"factors of a matrix that is none", "trainer.lora={targets: [embed_tokens]}", kRefused,
     R"(trainer.lora.targets has "embed_tokens", wants names of q_proj, k_proj)"},
    {"factors that count for nothing", "trainer.lora={alpha: 0}", kRefused,
     "trainer.lora.alpha is 0, wants more than 0"},
    {"factors and gradients in parts", "trainer.lora={} trainer.shard=gradients", kRefused,
     "trainer.lora needs the whole gradient of each matrix; use none or optimizer"},
    {"one answer's gradient in parts",
     "algorithm.advantage.kind=min_variance algorithm.loss.kind=reinforce trainer.shard=gradients",
     kRefused, "min_variance needs the whole gradient of each answer"},
    {"older versions in parts", "algorithm.loss.prox=exact trainer.shard=parameters", kRefused,
     "exact keeps whole versions of the weights on each rank; use gradients or less"},
    {"balanced experts of a model without experts", "algorithm.loss.router_balance=0.001", kRefused,
     "has no experts whose load could be balanced; use 0"},
    {"balanced experts with frozen routers", "algorithm.loss.router_balance=0.001 trainer.lora={}",
     kRefused, "excludes algorithm.loss.router_balance: it never changes the routers"},
    {"balanced experts and one answer's gradient",
     "algorithm.advantage.kind=min_variance algorithm.loss.kind=reinforce "
     "algorithm.loss.router_balance=0.001",
     kRefused, "weighs the gradient of each answer by itself"},
    {"a negative balance of experts", "algorithm.loss.router_balance=-1", kRefused,
     "algorithm.loss.router_balance is -1, but the minimum is 0"},
    {"factors without a rank", "trainer.lora={rank: 0}", kRefused,
     "trainer.lora.rank is 0, but the minimum is 1"},
    {"dpo settings of another kind", "trainer.dpo.beta=0.2", kRefused,
     "trainer.dpo is not used by kind: rl"},
    {"nothing to learn from", "algorithm.advantage.kind=none", kRefused, "Set model.teacher"},
    {"a teacher that is not there", "model.teacher.path=/nowhere", kRefused,
     "model.teacher.path: there is no directory /nowhere"},
    {"a distillation without a teacher", "algorithm.distill.kind=full", kRefused,
     "algorithm.distill.kind: has an effect only with model.teacher"},
    {"a misspelt preset", "algorithm.preset=sync_grp", kRefused, R"(Did you mean "sync_grpo"?)"},
    {"an advantage of another framework", "algorithm.advantage.kind=remax", kRefused,
     "wants grpo, dr_grpo, rloo, pool_loo, lite_ppo, maxrl,"},
    {"a critic that nothing reads", "trainer.critic.lr=1e-3", kRefused,
     "trainer.critic is not used by algorithm.advantage.kind: rloo"},
    {"a lambda without a critic", "algorithm.advantage.lam=0.9", kRefused,
     "algorithm.advantage.lam: has an effect only with advantage.kind: gae"},
    {"a discount above 1", "algorithm.advantage={kind: gae, lam: 1.5}", kRefused,
     "algorithm.advantage.lam is 1.5, but the maximum is 1"},
    {"a kl target without a kl", "algorithm.advantage.kl_target=0.1", kRefused,
     "algorithm.advantage.kl_target: has an effect only with advantage.kl above 0"},
    {"a loss of another framework", "algorithm.loss.kind=gpg", kRefused,
     "wants reinforce, ppo, dapo, gspo, cispo, sapo, aepo, dppo_tv"},
    {"an aggregation that is none", "algorithm.loss.aggregation=mean", kRefused,
     "wants token_mean, seq_mean_token_mean"},
    {"a kl that cannot be a loss", "algorithm.loss.kl_kind=k1", kRefused,
     "wants auto, k2, k3, k2+, k3_is"},
    {"a verifier that is none", "reward.rewards.0.verifier=ifevl", kRefused,
     R"(is "ifevl", wants code, countdown, exact, format, gsm8k, ifeval, json_schema, )"
     R"(judge, math, multiple_choice, plugin, regex, text. Did you mean "ifeval"?)"},
    {"an evaluation that needs a judge",
     "reward.rewards=[{name: q, verifier: judge, args: {judge: strict}}] eval.every_steps=10 "
     "eval.datasets=[{name: digits, path: DIR/rows.jsonl, prompt: digits, answer: digits}]",
     kRight},
    {"an evaluation that needs a plug-in",
     "reward.rewards=[{name: q, verifier: plugin, args: {verl: DIR/reward.py:score}}] "
     "eval.every_steps=10 "
     "eval.datasets=[{name: digits, path: DIR/rows.jsonl, prompt: digits, answer: digits}]",
     kRight},
    {"a plug-in without its file",
     "reward.rewards=[{name: q, verifier: plugin, args: {verl: DIR/none.py:score}}]", kRefused,
     "reward.rewards.0.args: there is no file "},
    {"a plug-in without its function",
     "reward.rewards=[{name: q, verifier: plugin, args: {verl: DIR/none.py}}]", kRefused,
     "which names no function; wanted: FILE.py:FUNCTION"},
    {"a plug-in that is loaded anew in a word of ours",
     "reward.rewards=[{name: q, verifier: plugin, args: {verl: DIR/reward.py:score, reload: "
     "never}}]",
     kRefused, "reload is \"never\"; wanted: auto or manual"},
    {"a plug-in that is a server of the operator",
     "reward.rewards=[{name: q, verifier: plugin, args: {grpc: style, low: 0, high: 1}}]", kRight},
    {"a server of which a job wants processes",
     "reward.rewards=[{name: q, verifier: plugin, args: {grpc: style, processes: 2}}]", kRefused,
     "args.processes is given, but the server style of grpc runs by itself; leave it out"},
    {"a server and a function at once",
     "reward.rewards=[{name: q, verifier: plugin, args: {grpc: style, verl: DIR/reward.py:score}}]",
     kRefused,
     "args must have one of verl, trl, native (FILE.py:FUNCTION), exec (a command) and "
     "grpc"},
    {"a deterministic job whose rewards would change",
     "run.deterministic=true queue.max_staleness=0 queue.admission.oversample=0 "
     "reward.rewards=[{name: q, verifier: plugin, args: {verl: DIR/reward.py:score, reload: "
     "auto}}]",
     kRefused, "but run.deterministic needs rewards that never change"},
    {"a candidate for a reward that is none",
     "reward.rewards=[{name: q, verifier: exact}, {name: r, verifier: gsm8k, shadow: p}]", kRefused,
     "reward.rewards.1.shadow is \"p\", which is no reward that counts; name one of q"},
    {"candidates alone", "reward.rewards=[{name: r, verifier: gsm8k, shadow: r}]", kRefused,
     "which is no reward that counts; there is none"},
    {"a candidate that is a gate",
     "reward.rewards=[{name: q, verifier: exact}, {name: r, verifier: gsm8k, shadow: q, gate: "
     "true}]",
     kRefused, "reward.rewards.1.gate is true, but this reward is a candidate"},
    {"a candidate with a weight",
     "reward.rewards=[{name: q, verifier: exact}, {name: r, verifier: gsm8k, shadow: q, weight: "
     "2}]",
     kRefused, "reward.rewards.1.weight is 2, but this reward is a candidate"},
    {"a candidate of groups where answers are scored one by one",
     "reward.rewards=[{name: q, verifier: exact}, {name: r, verifier: plugin, args: {trl: "
     "DIR/r.py:f}, granularity: group, shadow: q}]",
     kRefused, "reward.rewards.1.granularity is group, but this reward is a candidate"},
    {"a candidate",
     "reward.rewards=[{name: q, verifier: exact}, {name: r, verifier: gsm8k, shadow: q}]", kRight},
    {"a reward of whole groups, which are cut short",
     "reward.rewards=[{name: q, verifier: plugin, args: {trl: DIR/r.py:f}, granularity: group}] "
     "queue.straggler.policy=shrink",
     kRefused, "a reward of granularity group is given only when all have answered"},
    {"rewards of steps that all tokens would share",
     "reward.rewards=[{name: q, verifier: judge, args: {judge: strict, template: prm}}]", kRefused,
     "algorithm.advantage.kind is rloo, which gives all tokens of an answer the same advantage"},
    {"rewards of steps that are compared",
     "reward.rewards=[{name: q, verifier: judge, args: {judge: strict, template: prm}}] "
     "reward.combine=min algorithm.advantage.kind=reinforce_pp",
     kRefused, "reward.combine is min, but the judge's template prm rewards single tokens"},
    {"rewards of steps",
     "reward.rewards=[{name: q, verifier: judge, args: {judge: strict, template: prm}}] "
     "algorithm.advantage.kind=reinforce_pp",
     kRight},
    {"the times of turns", "algorithm.advantage.duration_aware=true", kRight},
    {"the times of turns in a deterministic job",
     "algorithm.advantage.duration_aware=true run.deterministic=true queue.max_staleness=0",
     kRefused, "algorithm.advantage.duration_aware is true, but run.deterministic needs false"},
    {"the times of turns with a baseline of whole answers",
     "algorithm.advantage={kind: min_variance, duration_aware: true} algorithm.loss.kind=reinforce",
     kRefused, "the turns of one answer cannot have different factors"},
    {"a misspelt verifier", "reward.rewards.0.verifier=txt", kRefused, R"(Did you mean "text"?)"},
    {"an argument that the verifier lacks", "reward.rewards.0.args={property: reversed, x: 1}",
     kRefused, "reward.rewards.0.args: "},
    {"a schedule that is none", "trainer.optimizer.schedule=linear", kRefused,
     "wants constant, cosine"},
    {"an optimizer that is none", "trainer.optimizer.name=sgd", kRefused,
     R"(trainer.optimizer.name is "sgd", wants adamw)"},
    {"vllm", "rollout.engine.kind=vllm", kRefused,
     R"(rollout.engine.kind: "vllm" is not in this build; use native)"},
    {"an environment", "rollout.environment.name=gym", kRefused,
     "environments are not in this build; leave the block out"},
    {"a sandbox of two cores", "reward.sandbox.cpu=2", kRight},
    {"a sandbox with a network", "reward.sandbox.network=host", kRefused,
     "a network for programs is not in this build; use none"},
    {"sandboxes of a server", "reward.sandbox.tier=T2", kRight},
    {"sandboxes of a server with two cores", "reward.sandbox={tier: T2, cpu: 2}", kRefused,
     "reward.sandbox.cpu is not 1, but with reward.sandbox.tier: T2 programs run in the sandboxes "
     "of "
     "a server, whose calls have no such limit"},
    {"sandboxes of a server with much output", "reward.sandbox={tier: T2, output: 2MiB}", kRefused,
     "reward.sandbox.output is not 1MiB or less"},
    {"a sandbox without room for an interpreter", "reward.sandbox.memory=1MiB", kRefused,
     "an interpreter needs at least 64MiB"},
    {"an evaluation that runs programs",
     "reward.rewards=[{name: tests, verifier: code}] eval.every_steps=10 "
     "eval.datasets=[{name: digits, path: DIR/rows.jsonl, prompt: digits, answer: digits}]",
     kWarned, "has values that code cannot score"},
    {"a profile", "profile=laptop", kRefused, "profiles are not in this build; use none"},
    {"adaptive sampling", "data.order.sampler=adaptive", kRight},
    {"levels of a file without a column for them", "data.order.sampler=levels", kRefused,
     "data.train.0.fields names no column for level, by which data.order.sampler: levels orders"},
    {"levels of a file", "data.order.sampler=levels data.train.0.fields={level: digits}", kRight},
    {"levels of a generator with one",
     "data.order.sampler=levels data.train=[{name: digits, generator: {kind: arithmetic}, "
     "format: \"{problem}=\"}]",
     kRefused, "data.order.sampler is levels, but each source has one level only"},
    {"levels of a generator with two",
     "data.order.sampler=levels data.train=[{name: digits, generator: {kind: arithmetic, levels: "
     "[1, 2]}, format: \"{problem}=\"}]",
     kRight},
    {"a level that cannot be mastered",
     "data.order.sampler=levels data.order.level_up=1.5 data.train.0.fields={level: digits}",
     kRefused, "data.order.level_up is 1.5, but no answer can earn more than 1, so that no level"},
    {"rows that rest", "data.order.sampler=adaptive data.order.rest_after=3", kRight},
    {"rows that rest with weights that add up to 1",
     "data.order.sampler=adaptive data.order.rest_after=3 "
     "reward.rewards=[{name: a, verifier: exact, weight: 0.6}, {name: b, verifier: exact, weight: "
     "0.3}, {name: c, verifier: exact, weight: 0.1}]",
     kRight},
    {"rows that rest although each is drawn once", "data.order.rest_after=3", kRefused,
     "sampler: uniform draws each row once in each epoch"},
    {"a rest of nothing", "data.order.rest_steps=10", kRefused,
     "data.order.rest_steps has an effect only with rest_after"},
    {"rows that rest after no visit", "data.order={sampler: adaptive, rest_after: 0}", kRefused,
     "data.order.rest_after is 0, but the minimum is 1"},
    {"rows that no answer sends to rest",
     "data.order={sampler: adaptive, rest_after: 3} "
     "reward.rewards=[{name: q, verifier: exact, weight: 0.5}]",
     kRefused, "so no row would ever be answered perfectly"},
    {"levels that only a candidate would end",
     "data.order.sampler=levels data.order.level_up=1.5 data.train.0.fields={level: digits} "
     "reward.rewards=[{name: q, verifier: exact}, {name: r, verifier: gsm8k, shadow: q}]",
     kRefused, "data.order.level_up is 1.5, but no answer can earn more than 1, so that no level"},
    {"a window without levels", "data.order.level_window=10", kRefused,
     "data.order.level_window has an effect only with sampler: levels; leave it out"},
    {"passes over data that is sampled", "data.order.sampler=adaptive data.order.epochs=2",
     kRefused, "data.order.epochs is 2, but sampler: adaptive makes no passes over the data"},
    {"a sampler that goes by what the clock decides",
     "data.order.sampler=adaptive run.deterministic=true queue.max_staleness=0 "
     "algorithm.advantage.group_filter=signal",
     kRefused, "the sampler goes by groups that are rejected, and these come in any order"},
    {"a sampler without rewards to go by", "kind=sft data.order.sampler=adaptive", kRefused,
     "data.order.sampler is adaptive, which goes by rewards, and this job has none"},
    {"tensor parallelism", "trainer.parallel.tensor=2", kRefused,
     "sharing each matrix is not in this build; use 1"},
    {"more ranks than groups", "resources.trainer=33", kRefused,
     "resources.trainer is 33, but the maximum is queue.groups_per_step = 32"},
    {"another number of data-parallel ranks", "trainer.parallel.data=3", kRefused,
     "trainer.parallel.data is 3, but resources.trainer is 1"},
    {"delta weights", "weights.encoding=delta", kRefused,
     R"("delta" is not in this build; use auto or full)"},
    {"a broadcast between GPUs", "weights.broadcast=nccl", kRefused,
     "NCCL moves the memory of GPUs, and engines on GPUs are not in this build; use gloo, or none"},
    {"a GPU", "resources.device=cuda", kRefused,
     "another device than the CPU is not in this build"},
    {"a cut distribution", "rollout.sampling.top_p=0.9", kRefused,
     "training on truncated distributions is not in this build"},
    {"a distribution of nothing", "rollout.sampling.top_p=0", kRefused,
     "training on truncated distributions is not in this build"},
    {"a time limit of a turn", "rollout.timeout=5s", kRefused,
     "a time limit of one turn's generation is not in this build"},
    {"a limit of tokens", "limits.tokens=1000000", kRefused, "use limits.max_steps or limits.wall"},

    // Values that contradict each other, or can never do what they say.
    {"a group of one", "rollout.group.size=1 rollout.group.min=1", kRefused,
     "compares the members of a group, but rollout.group.size is 1"},
    {"a least group above the group", "rollout.group.min=9", kRefused,
     "maximum is rollout.group.size = 8"},
    {"groups in two waves", "rollout.group={size: 8, first_wave: 4}", kRight},
    {"a first wave of one answer", "rollout.group.first_wave=1", kRefused,
     "rollout.group.first_wave is 1, but the minimum is 2"},
    {"a first wave of all answers", "rollout.group.first_wave=8", kRefused,
     "none would be left for a second wave"},
    {"a first wave below the least group", "rollout.group.first_wave=4 rollout.group.min=6",
     kRefused, "the maximum is rollout.group.first_wave"},
    {"waves of a group that is scored as one",
     "reward.rewards=[{name: q, verifier: plugin, args: {trl: DIR/r.py:f}, granularity: group}] "
     "rollout.group.first_wave=4",
     kRefused, "it cannot decide how many there are"},
    {"waves without rewards",
     "model.teacher.path=DIR/model algorithm.advantage.kind=none rollout.group.first_wave=4",
     kRefused, "this job learns from none"},
    {"a model and random weights", "model.path=DIR/model", kRefused, "contradicts model.path"},
    {"no model", "model.init=none", kRefused, "model wants one of path"},
    {"versions too far apart", "weights.every_steps=4", kRefused,
     "maximum is queue.max_staleness + 1 = 3"},
    {"answers that end with a version too old to train on",
     "weights.inflight=finish queue.max_staleness=0", kRefused,
     "with queue.max_staleness 0 no answer is trained on that ends after its version was replaced"},
    {"more versions held than are trained on",
     "weights.inflight=finish weights.resident_versions=4", kRefused,
     "weights.resident_versions is 4, but the maximum is queue.max_staleness + 1 = 3"},
    {"versions held for nothing", "weights.resident_versions=3", kRefused,
     "a rollout holds one version unless weights.inflight is finish"},
    {"answers that end with their version, and would be computed again",
     "weights.inflight=finish weights.kv_cache=recompute", kRefused,
     "no answer of the job goes on with new weights"},
    {"answers that end with their version", "weights.inflight=finish queue.straggler.policy=wait",
     kRight},
    {"late answers that end with their version", "weights.inflight=finish", kWarned,
     "with weights.inflight: finish it gains none, and is dropped whole if it ends too late"},
    {"a bound on the drift that nothing follows",
     "queue.admission.staleness=1 queue.admission.min_ess=0.5", kRefused,
     "queue.admission.min_ess needs queue.admission.staleness: auto, which is 1"},
    {"a bound on the drift without staleness", "queue.max_staleness=0 queue.admission.max_kl=0.1",
     kRefused, "with queue.max_staleness 0 there is nothing to lower"},
    {"a bound on the drift that no step keeps", "queue.admission.max_kl=0", kRefused,
     "queue.admission.max_kl is 0, which no step keeps"},
    {"a bound on the drift that every step keeps", "queue.admission.min_ess=0", kRefused,
     "queue.admission.min_ess is 0, which every step keeps"},
    {"a bound on the effective share of rows", "kind=sft queue.admission.min_ess=0.5", kRefused,
     "queue.admission.min_ess is not used by kind: sft"},
    {"a bound on the drift of rows", "kind=dpo queue.admission.max_kl=0.1", kRefused,
     "queue.admission.max_kl is not used by kind: dpo"},
    {"bounds on the drift", "queue.admission.min_ess=0.5 queue.admission.max_kl=0.1", kRight},
    {"masking where answers are dropped", "queue.admission.statistic=strict", kRefused,
     "mask needs queue.admission.statistic: masked"},
    {"its own anchor over two updates", "algorithm.loss.prox=self trainer.batching.minibatches=2",
     kRefused, "self needs one optimizer step"},
    {"a weight counted twice", "algorithm.loss.prox=none", kRefused, "count it twice"},
    {"a ratio per sequence and a mean over tokens",
     "algorithm.loss.kind=gspo algorithm.loss.aggregation=token_mean", kRefused,
     "Set aggregation: seq_mean_token_mean"},
    {"bounds of another loss", "algorithm.loss.cispo_high=4", kRefused,
     "only with loss.kind: cispo"},
    {"a baseline that needs a linear loss", "algorithm.advantage.kind=min_variance", kRefused,
     "Set loss.kind: reinforce"},
    {"a kl in the reward without a reference", "algorithm.advantage.kl=0.1", kRefused,
     "needs a reference model"},
    {"rewards that may be negative", "algorithm.advantage={kind: maxrl, truncated: penalty}",
     kRefused, "can make negative"},
    {"a kl without a reference", "algorithm.loss.kl=0.1", kRefused, "needs a reference model"},
    {"greedy training", "rollout.sampling.temperature=0", kRefused,
     "greedy answers have no probability to train on"},
    {"an answer as long as the context", "rollout.max_response=16", kRefused,
     "must be below model.max_context = 16"},
    {"more updates than groups", "trainer.batching.minibatches=64", kRefused,
     "maximum is queue.groups_per_step = 32"},
    {"a quota for nothing", "queue.keep.quota=1KiB", kRefused,
     "queue.keep.quota 1KiB < worst case"},
    {"all the staleness there is", "queue.max_staleness=4294967295", kRefused,
     "queue.keep.quota 8GiB < worst case"},
    {"determinism by the clock", "run.deterministic=true", kRefused, "run.deterministic needs 0"},
    {"more rollouts at the least than at the most", "resources.rollout.min=3", kRefused,
     "wants 1 <= min <= max, has 3 and 1"},
    {"sft with rewards", "kind=sft", kRefused, "reward is not used by kind: sft"},
    {"a reward for another source", "reward.rewards.0.when.data_source=[digit]", kRefused,
     R"(Did you mean "digits"?)"},
    {"a reward of nothing", "reward.rewards.0.weight=0", kRefused, "nothing could be learned"},
    {"data that is never drawn", "data.train.0.weight=0", kRefused,
     "the weight of every source is 0"},
    {"two sources of one name", "data.train.1.name=digits data.train.1.path=DIR/rows.jsonl",
     kRefused, "\"digits\" is taken"},
    {"a generator and a path", "data.train.0.generator={kind: sort}", kRefused,
     "data.train.0.generator contradicts the path of the source; give one of them"},
    {"a generator that is none",
     "data.train=[{name: digits, generator: {kind: chess}, format: '{problem}'}]", kRefused,
     R"(data.train.0.generator.kind is "chess", wants arithmetic, chain_sum, countdown, sort)"},
    {"a generator without a kind", "data.train=[{name: digits, generator: {rows: 5}}]", kRefused,
     "data.train.0.generator.kind is missing"},
    {"a level that a generator lacks",
     "data.train=[{name: digits, generator: {kind: countdown, levels: [1, 9]}}]", kRefused,
     "data.train.0.generator: levels has 9, wanted: levels of countdown, which are 1 to 8"},
    {"a generator without levels",
     "data.train=[{name: digits, generator: {kind: sort, levels: []}}]", kRefused,
     "levels has 0 elements"},
    {"a generator of too many rows",
     "data.train=[{name: digits, generator: {kind: sort, rows: 2000000}}]", kRefused,
     "data.train.0.generator.rows is 2000000"},
    {"a generator whose answers are held out too",
     "data.train=[{name: digits, generator: {kind: arithmetic}, prompt: answer}] "
     "eval.every_steps=10 "
     "eval.datasets=[{name: digits, generator: {kind: arithmetic, levels: [2, 1, 1]}, prompt: "
     "answer}]",
     kWarned, "makes tasks that data.train.0 is trained on"},
    {"a division by zero", "trainer.optimizer.eps=0", kRefused, "wants more than 0, such as 1e-8"},
    {"one beta", "trainer.optimizer.betas=[0.9]", kRefused, "wants two values"},

    // Files.
    {"a model that is not there", "model.init.config=DIR/nowhere", kRefused, "no directory"},
    {"a model without weights", "model.init=none model.path=DIGITS/digits", kRefused,
     "neither model.safetensors nor"},
    {"an architecture of another framework", "model.init.config=DIR/bert", kRefused,
     "BertForMaskedLM"},
    {"a config.json that is no JSON", "model.init.config=DIR/broken", kRefused,
     "SLUICE-CONFIG-0015 model.init.config: "},
    {"a model without a tokenizer", "model.init.config=DIR/mute", kRefused,
     "has no tokenizer.json"},
    {"a chat template that is not there", "model.chat_template=DIR/none.jinja", kRefused,
     "model.chat_template: there is no file"},
    {"a broken chat template", "model.chat_template=DIR/broken.jinja", kRefused,
     "SLUICE-CONFIG-0015"},
    {"data that is not there", "data.train.0.path=DIR/nowhere.jsonl", kRefused,
     "data.train.0.path: there is no file"},
    {"a folder as data", "data.train.0.path=DIR", kRefused,
     "is a folder that `save_to_disk` of datasets has not written"},
    {"an empty file", "data.train.0.path=DIR/empty.jsonl", kRefused, "empty.jsonl has no rows"},
    {"csv", "data.train.0.path=DIR/rows.csv", kRefused, "is CSV, which this build does not read"},
    {"broken parquet", "data.train.0.path=DIR/rows.parquet", kRefused,
     "rows.parquet: Parquet file size is 4 bytes"},
    {"a row that is no JSON", "data.train.0.path=DIR/bad.jsonl", kRefused, "bad.jsonl:2:"},
    {"a column that is not there", "data.train.0.prompt=question", kRefused,
     "no column \"question\" for field prompt; the row has digits"},
    {"a further field that is not there", "data.train.0.fields={hint: clue}", kRefused,
     "no column \"clue\" for field hint"},
    {"a gold that is not there",
     "data.train.0.prompt=digits data.train.0.answer=answer reward.rewards.0.verifier=exact "
     "reward.rewards.0.args={}",
     kRefused, "no column \"answer\", which the verifier exact needs"},
    {"a format of another field", "data.train.0.format=\"{question}=\"", kRefused,
     "the row has no field question"},
    {"a format with an open brace", "data.train.0.format=\"{digits\"", kRefused,
     "the brace at 0 is not closed"},
    {"prompts that never fit", "data.order.max_prompt=2", kRefused,
     "none of the first 256 prompts fits"},
    {"checkpoints in a file", "checkpoint.dir=DIR/rows.jsonl", kRefused, "is not a directory"},
    {"weights in a file", "weights.dir=DIR/rows.jsonl", kRefused, "is not a directory"},
    {"weights among the checkpoints", "checkpoint.dir=DIR/out weights.dir=DIR/out", kRefused,
     "where files of both would mix; use another folder"},
    {"memory for nobody", "kind=sft weights.ucx=true", kRefused,
     "which has no rollouts; use false"},
    {"a folder of weights for nobody", "kind=sft weights.dir=DIR/weights", kRefused,
     "which has no rollouts; leave it out"},
    {"a broadcast to one rollout",
     "weights.broadcast=gloo resources.rollout.min=1 resources.rollout.max=1", kRefused,
     "weights.broadcast needs at least 2 rollouts, but resources.rollout.max is 1"},
    {"a broadcast to the one rollout beside a canary",
     "weights.broadcast=gloo weights.canary.tokens=256 resources.rollout.max=2", kRefused,
     "needs at least 3 rollouts, because the canary gets each version alone"},
    {"a broadcast beside UCX", "weights.broadcast=gloo weights.ucx=true resources.rollout.max=2",
     kWarned, "rollouts that can read over UCX take part in no broadcast"},
    {"a broadcast to nobody", "kind=sft weights.broadcast=gloo", kRefused,
     "weights.broadcast is not used by kind: sft, which has no rollouts"},

    // Values that work, and are hardly meant.
    {"a learning rate of 1000", "trainer.optimizer.lr=1e3", kWarned,
     "trainer.optimizer.lr is 1000; above 0.01 adamw"},
    {"no learning rate", "trainer.optimizer.lr=0", kWarned, "the weights never change"},
    {"micro-batches of one token", "trainer.batching.micro_batch_tokens=1", kWarned,
     "one sequence may have 15 tokens"},
    {"a context that the model lacks", "model.max_context=100000", kWarned,
     "this model was made for 64 tokens"},
    {"a context for no whole answer", "data.order.max_prompt=12", kWarned,
     "answers to long prompts are cut short"},
    {"a hot policy", "rollout.sampling.temperature=5", kWarned, "answers will be mostly noise"},
    {"a cold policy", "rollout.sampling.temperature=0.01", kWarned,
     "the answers of a group will hardly differ"},
    {"very old tokens", "queue.max_staleness=50", kWarned, "teach little"},
    {"a mask of weights on old tokens", "algorithm.loss.tis_outside=drop queue.max_staleness=4",
     kWarned, "because the policy has learned"},
    {"a warm-up that never ends", "trainer.optimizer.warmup=5000", kWarned,
     "so it never leaves the warm-up"},
    {"no checkpoints", "checkpoint.every_steps=0", kWarned, "a crash loses all that was trained"},
    {"one checkpoint", "checkpoint.keep_last=1", kWarned, "there is none to go back to"},
    {"failing before warning", "limits.stall_fail=10s", kWarned, "shorter than limits.stall_warn"},
    {"a trust region of a point", "algorithm.loss.clip_low=0 algorithm.loss.clip_high=0", kWarned,
     "the clip range has no width"},
    {"golds that are null", "data.train.0.path=DIR/null.jsonl data.train.0.answer=a", kWarned,
     "their answers are dropped. The first is "},
    {"bad rows that are skipped", "data.train.0.path=DIR/bad.jsonl data.order.on_bad_row=skip",
     kWarned, "1 of the first 2"},
    {"mostly long prompts", "data.train.0.path=DIR/long.jsonl", kWarned,
     "has prompts that are too long and are dropped: 2 of the first 3"},
    {"messages without a chat template",
     "data.train.0.path=DIR/messages.jsonl data.train.0.format=none", kWarned,
     "is a list of messages, and there is no chat template"},

    // Job files that are right.
    {"the example", "", kRight},
    {"a priority", "run.priority=5", kRight},
    {"skipping bad rows", "data.order.on_bad_row=skip", kRight},
    {"determinism", "run.deterministic=true queue.max_staleness=0", kRight},
    {"bfloat16", "model.dtype=bfloat16", kRight},
    {"a chat template of its own", "model.chat_template=DIR/plain.jinja", kRight},
    {"no limit of steps", "limits.max_steps=none trainer.optimizer.schedule=constant", kRight},
    {"a mask of weights on tokens of the last version",
     "algorithm.loss.tis_outside=drop queue.max_staleness=1", kRight},
    {"a mask of weights on what is no staleness",
     "algorithm.loss.tis_outside=drop algorithm.loss.prox=exact queue.max_staleness=4", kRight},
    {"a larger scale of groups", "rollout.group.size=64", kRight},
};

// A run of the program.
struct Finished {
  int exit = -1;
  std::string out, err;
};

class OddConfigsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sluice_odd_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    Write("rows.jsonl", "{\"digits\": \"1234\"}\n");
    Write("empty.jsonl", "\n");
    Write("reward.py",
          "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
          "    return 1.0\n");
    Write("rows.parquet", "PAR1");
    Write("rows.csv", "q,a\n1,2\n");
    Write("bad.jsonl", "{\"digits\": \"1234\"}\n{\"digits\": \"12\n");
    Write("null.jsonl", "{\"digits\": \"1234\", \"a\": null}\n");
    Write("long.jsonl",
          "{\"digits\": \"1234\"}\n{\"digits\": \"123456789\"}\n{\"digits\": \"1234567890\"}\n");
    Write("messages.jsonl", "{\"digits\": [{\"role\": \"user\", \"content\": \"12\"}]}\n");
    Write("broken.jinja", "{% if %}");
    Write("plain.jinja", "{{ messages[0]['content'] }}=");
    for (const char* model : {"bert", "broken", "mute"})
      std::filesystem::copy(digits_ + "/digits", absl::StrCat(dir_, "/", model));
    Write("bert/config.json",
          R"({"architectures":["BertForMaskedLM"],"model_type":"bert","hidden_size":64})");
    Write("broken/config.json", "{");
    std::filesystem::remove(dir_ + "/mute/tokenizer.json");
  }

  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_EQ(WriteFileAtomic(absl::StrCat(dir_, "/", name), text), absl::OkStatus());
  }

  // Runs `sluice config validate` on the changed example.
  Finished Validate(const Case& odd) {
    std::string text = absl::StrReplaceAll(
        *ReadFile(digits_ + "/digits.yaml"),
        {{"config: digits,", absl::StrCat("config: ", digits_, "/digits,")},
         {"path: digits/train.jsonl", absl::StrCat("path: ", digits_, "/digits/train.jsonl")}});

    std::string command =
        absl::StrCat(SLUICE_BIN_DIR, "/sluice config validate ", dir_, "/job.yaml");
    const std::vector<std::string> halves = absl::StrSplit(odd.change, " -> ");
    if (halves.size() == 2) {
      const std::string before = text;
      absl::StrReplaceAll({{halves[0], halves[1]}}, &text);
      EXPECT_NE(text, before);
    } else {
      for (const std::string& set : SetsOf(odd.change))
        absl::StrAppend(&command, " --set '", set, "'");
    }
    Write("job.yaml", text);

    absl::StrAppend(&command, " >", dir_, "/out 2>", dir_, "/err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, *ReadFile(dir_ + "/out"),
            *ReadFile(dir_ + "/err")};
  }

  // The words of a change; a value in braces or brackets may hold spaces.
  std::vector<std::string> SetsOf(absl::string_view change) const {
    std::vector<std::string> sets;
    int depth = 0;
    bool open = false;
    for (const char c : change) {
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      if (c == ' ' && depth <= 0) {
        open = false;
        continue;
      }
      if (!open) sets.emplace_back();
      open = true;
      sets.back() += c;
    }
    for (std::string& set : sets)
      absl::StrReplaceAll({{"=DIR", absl::StrCat("=", dir_)},
                           {": DIR", absl::StrCat(": ", dir_)},
                           {"DIGITS", digits_}},
                          &set);
    return sets;
  }

  // Tries all cases with this outcome.
  void Expect(Outcome outcome) {
    int tried = 0;
    for (const Case& odd : kCases) {
      if (odd.outcome != outcome) continue;
      SCOPED_TRACE(absl::StrCat(odd.name, ": ", odd.change));
      ++tried;

      const Finished run = Validate(odd);
      EXPECT_EQ(run.exit, outcome == kRefused ? 2 : 0) << run.err;
      EXPECT_EQ(run.out.empty(), outcome == kRefused);
      EXPECT_THAT(run.err, testing::HasSubstr(odd.message));
      EXPECT_EQ(absl::StrContains(run.err, " warning: "), outcome == kWarned) << run.err;
      if (outcome == kRight) {
        EXPECT_EQ(run.err, "");
      }
    }
    EXPECT_GT(tried, 0);
  }

  const std::string digits_ = SLUICE_SOURCE_DIR "/configs/examples";
  std::string dir_;
};

TEST_F(OddConfigsTest, WhatCannotDoWhatItSaysIsRefusedWithTheReason) { Expect(kRefused); }
TEST_F(OddConfigsTest, WhatIsHardlyMeantIsWarnedOfAndRuns) { Expect(kWarned); }
TEST_F(OddConfigsTest, WhatIsRightIsTakenWithoutAWord) { Expect(kRight); }

TEST_F(OddConfigsTest, ASupervisedJobNeedsAnAnswerInEachRow) {
  const auto validate = [&](const std::string& row) {
    Write("demonstrations.jsonl", absl::StrCat("{\"q\": \"12\", \"a\": 21}\n", row, "\n"));
    Write("sft.yaml", absl::StrCat("name: s\nkind: sft\nmodel: {init: {config: ", digits_,
                                   "/digits}, max_context: 16}\n"
                                   "data: {train: [{name: d, path: demonstrations.jsonl, prompt: "
                                   "q, answer: a, format: \"{q}=\"}]}\n"
                                   "checkpoint: {dir: checkpoints}\nlimits: {max_steps: 5}\n"));
    const std::string command = absl::StrCat(SLUICE_BIN_DIR, "/sluice config validate ", dir_,
                                             "/sft.yaml >", dir_, "/out 2>", dir_, "/err");
    const int status = std::system(command.c_str());
    return std::make_pair(WEXITSTATUS(status), *ReadFile(dir_ + "/err"));
  };

  EXPECT_EQ(validate("{\"q\": 34, \"a\": \"43\"}").first, 0);

  const auto [exit, missing] = validate("{\"q\": \"34\"}");
  EXPECT_EQ(exit, 2);
  EXPECT_THAT(missing,
              testing::HasSubstr("demonstrations.jsonl:2: no column \"a\" for field answer"));
  EXPECT_THAT(validate("{\"q\": \"34\", \"a\": null}").second,
              testing::HasSubstr("demonstrations.jsonl:2: field `answer` is null, wanted: a text "
                                 "or a number; kind sft trains on it"));
}

TEST_F(OddConfigsTest, ADpoJobNeedsTwoDifferentAnswersInEachRow) {
  const auto validate = [&](const std::string& row, const std::string& more = "",
                            const std::string& order = "order: {on_bad_row: fail}") {
    Write("pairs.jsonl",
          absl::StrCat("{\"q\": \"12\", \"good\": 21, \"bad\": \"12\"}\n", row, "\n"));
    Write("dpo.yaml",
          absl::StrCat("name: d\nkind: dpo\nmodel: {init: {config: ", digits_,
                       "/digits}, max_context: 16, reference: initial}\n"
                       "data: {train: [{name: d, path: pairs.jsonl, prompt: q, fields: {chosen: "
                       "good, rejected: bad}, format: \"{q}=\"}], ",
                       order,
                       "}\n"
                       "checkpoint: {dir: checkpoints}\nlimits: {max_steps: 5}\n",
                       more));
    const std::string command = absl::StrCat(SLUICE_BIN_DIR, "/sluice config validate ", dir_,
                                             "/dpo.yaml >", dir_, "/out 2>", dir_, "/err");
    const int status = std::system(command.c_str());
    return std::make_pair(WEXITSTATUS(status), *ReadFile(dir_ + "/err"));
  };

  const auto [exit, text] = validate("{\"q\": 34, \"good\": \"43\", \"bad\": 34}");
  EXPECT_EQ(exit, 0) << text;
  EXPECT_THAT(validate("{\"q\": 34, \"good\": \"43\", \"bad\": \"43\"}").second,
              testing::HasSubstr("pairs.jsonl:2: the fields `chosen` and `rejected` are the same; "
                                 "kind dpo trains on it"));
  const auto [skips, warning] =
      validate("{\"q\": 34, \"good\": \"43\", \"bad\": \"43\"}",
               "trainer: {batching: {minibatches: 1}}\n", "order: {on_bad_row: skip}");
  EXPECT_EQ(skips, 0) << warning;
  EXPECT_THAT(warning, testing::HasSubstr("such rows are left out"));
  EXPECT_THAT(validate("{\"q\": 34, \"good\": \"43\", \"bad\": 3}",
                       "trainer: {dpo: {beta: 0, label_smoothing: 0.5}}\n")
                  .second,
              testing::AllOf(testing::HasSubstr("trainer.dpo.beta is 0, wants more than 0"),
                             testing::HasSubstr("label_smoothing is 0.5, wants less than 0.5")));
}

}  // namespace
}  // namespace sluice
