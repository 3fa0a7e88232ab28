#include "common/weights/convert.h"

#include "common/rpc/convert.h"

namespace sluice {

weights::v1::Latest ToProto(const PublishedVersion& latest) {
  weights::v1::Latest out;
  *out.mutable_version() = rpc::ToProto(latest.version);
  out.set_manifest(latest.manifest);
  out.set_state(latest.state.bytes());
  if (latest.hold_until) out.set_hold_until(*latest.hold_until);
  return out;
}

weights::v1::VersionNode ToProto(const WeightEdge& edge) {
  weights::v1::VersionNode out;
  *out.mutable_version() = rpc::ToProto(edge.version.version);
  out.set_state(edge.version.state.bytes());
  out.set_manifest(edge.manifest);
  out.set_kind(edge.base ? weights::v1::Manifest::KIND_DELTA : weights::v1::Manifest::KIND_FULL);
  if (edge.base) out.set_base(edge.base->bytes());
  out.set_bytes(edge.bytes);
  *out.mutable_created() = rpc::ToProto(edge.created);
  return out;
}

weights::v1::VersionHealth ToProto(const VersionHealth& health) {
  weights::v1::VersionHealth out;
  out.set_rows(health.rows);
  out.set_bad_rows(health.bad_rows);
  out.set_gap_tokens(health.gap_tokens);
  out.set_gap(health.gap);
  out.set_probed(health.probed);
  return out;
}

}  // namespace sluice
