"""A reward in verl's convention, for configs/examples/plugin-verl.yaml."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Returns the share of places at which the answer is the digits backwards."""
    wanted = ground_truth[::-1]
    right = sum(is_ == should for is_, should in zip(solution_str, wanted))
    return {
        "score": right / max(len(solution_str), len(wanted)),
        "acc": solution_str == wanted,
    }
