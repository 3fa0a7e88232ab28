"""Rewards in TRL's convention, for configs/examples/plugin-trl.yaml."""


def reversed_reward(completions, answer, **kwargs):
    """Returns for each answer the share of places at which it is the digits backwards."""
    scores = []
    for completion, digits in zip(completions, answer):
        wanted = digits[::-1]
        right = sum(is_ == should for is_, should in zip(completion, wanted))
        scores.append(right / max(len(completion), len(wanted)))
    return scores


def rare_reward(completions, **kwargs):
    """Returns for each answer the share of the group that has another answer. An answer without a
    digit has no such reward."""
    return [
        1 - completions.count(completion) / len(completions) if completion else None
        for completion in completions
    ]
