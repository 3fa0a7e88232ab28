// What the job file can say and this build cannot do. A value that equals its default is never refused, so the printed
// defaults load.

#include <google/protobuf/util/message_differencer.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/rules.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::config {
namespace {

class Refuser {
 public:
  Refuser(const Binder& binder, Problems* problems) : binder_(binder), problems_(problems) {}

  void If(bool refused, absl::string_view path, absl::string_view what, absl::string_view hint) {
    if (refused) problems_->Add(binder_.PlaceOf(path), 13, absl::StrCat(path, ": ", what, " not in this build; ", hint));
  }
  void Word(const std::string& value, absl::string_view built, absl::string_view path) {
    If(value != built, path, absl::StrCat("\"", value, "\" is"), absl::StrCat("use ", built));
  }

 private:
  const Binder& binder_;
  Problems* const problems_;
};

}  // namespace

void CheckBuilt(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems) {
  Refuser refuse(binder, problems);
  refuse.If(spec.kind() == "dpo", "kind", "dpo is", "use rl or sft");
  refuse.If(spec.has_profile(), "profile", "profiles are", "use none");
  refuse.If(spec.run().priority() != 0, "run.priority", "priorities are", "jobs start in the order of their submits");

  const job::v1::Model& model = spec.model();
  refuse.If(model.has_digest(), "model.digest", "given digests are", "use auto");
  refuse.If(model.dtype() == "float16", "model.dtype", "float16 is", "use bfloat16, float32, or auto, which is float32 on a CPU");
  refuse.If(model.has_reference() && model.reference() != "initial", "model.reference", "a reference from a directory is",
            "use initial or none");
  refuse.Word(spec.data().order().sampler(), "uniform", "data.order.sampler");
  refuse.Word(spec.data().order().on_bad_row(), "fail", "data.order.on_bad_row");

  const job::v1::Rollout& rollout = spec.rollout();
  refuse.Word(rollout.engine().kind(), "native", "rollout.engine.kind");
  refuse.If(rollout.sampling().top_p() != 1, "rollout.sampling.top_p", "replay of cut distributions is", "use 1.0");
  refuse.If(rollout.sampling().top_k() != 0, "rollout.sampling.top_k", "replay of cut distributions is", "use 0");
  for (int i = 0; i < spec.reward().rewards_size(); ++i) {
    const job::v1::RewardEntry& entry = spec.reward().rewards(i);
    refuse.Word(entry.granularity(), "trajectory", absl::StrCat("reward.rewards.", i, ".granularity"));
  }

  refuse.If(spec.trainer().batching().recompute_activations(), "trainer.batching.recompute_activations", "recomputation is", "use false");

  const job::v1::Weights& weights = spec.weights();
  refuse.If(weights.has_encoding() && weights.encoding() != "full", "weights.encoding", "\"delta\" is", "use auto or full");
  refuse.If(weights.has_publish_dtype(), "weights.publish_dtype", "another type than the model's is", "use auto");
  refuse.If(weights.has_verify(), "weights.verify", "a choice of checks is", "use auto: all weights are read again");
  refuse.If(weights.allow_unverified(), "weights.allow_unverified", "unverified engines are", "use false");

  const job::v1::Resources& resources = spec.resources();
  refuse.If(resources.pool() != "default", "resources.pool", "pools are", "use default");
  refuse.If(resources.has_device() && resources.device() != "cpu", "resources.device", absl::StrCat("device ", resources.device(), " is"),
            "use auto or cpu");
  refuse.If(resources.trainer() > 1, "resources.trainer", "more than one trainer rank is", "use 1");
  refuse.If(resources.queue() > 1, "resources.queue", "more than one queue shard is", "use 1");

  refuse.If(spec.limits().has_tokens(), "limits.tokens", "a limit of tokens is", "use limits.max_steps or limits.wall");

  // Whole blocks: any value that is not its default. Derived from the block's own defaults, so that none is forgotten.
  job::v1::JobSpec plain;
  Problems none({""});
  Binder("", "", &none).FillDefaults(&plain, "");
  const auto block = [&](const std::string& path, const google::protobuf::Message& value, const google::protobuf::Message& defaults,
                         absl::string_view what, absl::string_view hint) {
    const google::protobuf::Descriptor& type = *value.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      google::protobuf::util::MessageDifferencer differ;
      std::vector<const google::protobuf::FieldDescriptor*> fields{type.field(i)};
      refuse.If(!differ.CompareWithFields(value, defaults, fields, fields), JoinPath(path, type.field(i)->name()), what, hint);
    }
  };
  block("rollout.environment", rollout.environment(), plain.rollout().environment(), "environments are", "leave the block out");
  block("reward.sandbox", spec.reward().sandbox(), plain.reward().sandbox(), "sandboxes are", "leave the block out");
  block("trainer.parallel", spec.trainer().parallel(), plain.trainer().parallel(), "more than one trainer rank is", "leave the block out");
  block("eval", spec.eval(), plain.eval(), "evaluation beside training is", "leave the block out; `sluice eval` evaluates a checkpoint");
}

}  // namespace sluice::config
