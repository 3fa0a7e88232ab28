"""A reward plug-in as a gRPC server, for configs/examples/plugin-grpc.yaml.

    pip install grpcio grpcio-tools
    python3 configs/examples/rewards/reversed_server.py unix:/tmp/sluice-reversed.sock

proto/sluice/plugin/v1/plugin.proto is the protocol. This server compiles it when it starts; others,
in any language, may use code that was generated from it.
"""

import hashlib
import json
import pathlib
import sys
from concurrent import futures

import grpc

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "proto"))
common = grpc.protos("sluice/common/v1/common.proto")
plugin, services = grpc.protos_and_services("sluice/plugin/v1/plugin.proto")

# It must change whenever a score may: answers of one group are never scored by two versions.
VERSION = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:16]


def score(item):
    """Returns the share of places at which the answer is the digits backwards."""
    wanted = json.loads(item.ground_truth)[::-1]
    right = sum(is_ == should for is_, should in zip(item.completion, wanted))
    return plugin.ScoreResult(
        score=right / max(len(item.completion), len(wanted)),
        parts={"acc": item.completion == wanted},
    )


def score_or_error(item):
    try:
        return score(item)
    except Exception as error:  # Never a 0: what failed says nothing about the answer.
        return plugin.ScoreResult(error=repr(error))


class Reversed(services.RewardPluginServicer):
    def Describe(self, request, context):
        test = {"item": {"completion": "21", "ground_truth": "12"}, "score": 1}
        return plugin.DescribeResponse(
            name="reversed",
            version=VERSION,
            granularity=common.GRANULARITY_TRAJECTORY,
            max_in_flight=16,
            self_test=[json.dumps(test)],
        )

    def Score(self, requests, context):
        for request in requests:
            yield plugin.ScoreResponse(
                id=request.id,
                version=VERSION,
                results=[score_or_error(item) for item in request.items],
            )


def main(address):
    # A job has one stream on each reward daemon, and a stream has a thread of its own.
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=64),
        # As much as reward daemons send. Without it, gRPC takes 4 MiB.
        options=[("grpc.max_receive_message_length", 16 << 20)],
    )
    services.add_RewardPluginServicer_to_server(Reversed(), server)
    server.add_insecure_port(address)
    server.start()
    print(f"serving version {VERSION} on {address}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
