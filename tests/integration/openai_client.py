"""The public OpenAI client, unchanged, against a rollout daemon that samples for the digits job.

openai_client.py ADDRESS KEY          prints one line for each check; exits 0 if all hold
"""

import asyncio
import sys

import openai

ADDRESS, KEY = sys.argv[1:]
URL = f"http://{ADDRESS}/v1"
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=120)
MESSAGES = [{"role": "user", "content": "12"}]


# The call fails with an error of class `kind` that has a message, and is about `param` if given.
def refused(kind, call, param=None):
    try:
        call()
    except kind as error:
        assert param is None or error.param == param, (error.param, param)
        assert error.body["message"], error.body
        return
    raise AssertionError(f"not refused with {kind.__name__}")


def models():
    found = {model.id: model for model in client.models.list().data}
    assert sorted(found) == ["digits", "digits:extra"], found
    assert found["digits"].owned_by == "sluice", found["digits"]
    assert client.models.retrieve("digits").version.count(":") == 1


def completion():
    answer = client.completions.create(
        model="digits", prompt="12=", max_tokens=4, n=3, temperature=0.7, stop=None
    )
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert all(c.finish_reason in ("stop", "length") for c in answer.choices)
    assert answer.usage.prompt_tokens == 4 and answer.usage.completion_tokens <= 12
    version, digest = answer.system_fingerprint.split("-")
    assert version.count(":") == 1 and len(digest) >= 32, answer.system_fingerprint


def prompts():
    ids = {"return_token_ids": True, "return_versions": True}
    answer = client.completions.create(
        model="digits", prompt=["1=", "22="], max_tokens=2, n=2, logprobs=0, extra_body=ids
    )
    assert len(answer.choices) == 4
    assert (
        answer.choices[0].prompt_token_ids
        == answer.choices[1].prompt_token_ids
        != answer.choices[2].prompt_token_ids
    )

    for choice in answer.choices:
        assert (
            len(choice.token_ids)
            == len(choice.logprobs.token_logprobs)
            == sum(v["tokens"] for v in choice.versions)
        )
        assert all(value <= 0 for value in choice.logprobs.token_logprobs)

    again = client.completions.create(
        model="digits", prompt=[c.prompt_token_ids for c in answer.choices[::2]], max_tokens=2
    )
    assert len(again.choices) == 2

    echoed = client.completions.create(model="digits", prompt="12=", max_tokens=2, echo=True)
    assert echoed.choices[0].text.startswith("12=")

    scored = client.completions.create(
        model="digits", prompt="12=", max_tokens=0, echo=True, logprobs=1
    )
    assert scored.choices[0].text == "12=" and scored.usage.completion_tokens == 0, scored
    assert all(value < 0 for value in scored.choices[0].logprobs.token_logprobs[1:]), scored

    client.completions.create(
        model="digits", prompt="12=", presence_penalty=0, logit_bias={}, best_of=1, user="me"
    )  # These values are the defaults, so they must not be refused as unsupported.


def seeds():
    ask = dict(model="digits", prompt="987=", max_tokens=5, n=4, seed=11)
    for _ in range(200):  # Weights change while the job trains; equal ones give equal answers.
        calls = [
            client.completions.create(**ask, extra_body={"return_versions": True}) for _ in range(2)
        ]
        one, two = (call.choices for call in calls)
        # An answer may have tokens of several versions; the fingerprint is that of the last one.
        if len({v["version"] for choice in one + two for v in choice.versions}) == 1:
            assert [c.text for c in one] == [c.text for c in two]
            assert calls[0].system_fingerprint == calls[1].system_fingerprint
            return
    raise AssertionError("the version moved on within or between any two calls")


def cuts():
    answer = client.completions.create(
        model="digits",
        prompt="12=",
        max_tokens=4,
        top_p=0.5,
        logprobs=2,
        extra_body={"top_k": 3, "min_p": 0.01},
    )

    logprobs = answer.choices[0].logprobs
    assert all(
        len(top) <= 3 and token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs)
    ), logprobs

    first = client.completions.create(
        model="digits", prompt="12=", max_tokens=1, n=32, top_p=0, logprobs=0
    )  # The first tokens come from one step, and so from one version.
    assert len({c.logprobs.tokens[0] for c in first.choices}) == 1, first.choices

    for chunk in client.completions.create(
        model="digits", prompt="12=", max_tokens=5, n=4, stop=list("0123456789"), stream=True
    ):
        assert not any(c.isdigit() for c in chunk.choices[0].text), chunk

    answer = client.chat.completions.create(
        model="digits",
        messages=MESSAGES,
        max_tokens=3,
        logprobs=True,
        top_logprobs=3,
        extra_body={"logprobs_mode": "raw"},
    )
    assert all(len(token.top_logprobs) == 3 for token in answer.choices[0].logprobs.content)


def stream():
    chunks = list(
        client.completions.create(
            model="digits",
            prompt="12=",
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
    )
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5
    assert chunks[-2].choices[0].finish_reason == "length"
    assert sum(len(c.choices[0].token_ids) for c in chunks[:-1]) == 5
    assert "".join(c.choices[0].text for c in chunks[:-1]), "no text"


def chat():
    answer = client.chat.completions.create(
        model="digits", messages=MESSAGES, max_completion_tokens=4, logprobs=True, temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content is not None
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    assert all(
        token.logprob < 0 for token in choice.logprobs.content
    ), "at temperature 0 the log-probs are those of the model, not 0"
    assert (
        bytes(b for token in choice.logprobs.content for b in token.bytes)
        .decode()
        .startswith(choice.message.content)
    ), choice

    ends, texts = {}, {0: "", 1: ""}
    for chunk in client.chat.completions.create(
        model="digits", messages=MESSAGES, n=2, max_tokens=4, stream=True
    ):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    assert ends.keys() == {0, 1} and all(ends.values()), (ends, texts)

    go_on = MESSAGES + [{"role": "assistant", "content": "2"}]
    client.chat.completions.create(
        model="digits", messages=go_on, max_tokens=2, extra_body={"continue_final_message": True}
    )


def errors():
    complete = lambda **more: client.completions.create(
        **({"model": "digits", "prompt": "1="} | more)
    )
    refused(openai.NotFoundError, lambda: complete(model="gpt"), "model")
    refused(openai.BadRequestError, lambda: complete(max_tokens=1000), "prompt")
    refused(openai.BadRequestError, lambda: complete(extra_body={"guided_json": {}}), "guided_json")
    refused(openai.BadRequestError, lambda: complete(presence_penalty=0.5), "presence_penalty")
    refused(openai.BadRequestError, lambda: complete(prompt=[1, 99999]))
    refused(
        openai.BadRequestError,
        lambda: client.chat.completions.create(
            model="digits", messages=[{"role": "wizard", "content": "x"}]
        ),
        "messages[0].role",
    )
    refused(openai.NotFoundError, lambda: client.embeddings.create(model="digits", input="x"))
    wrong = openai.OpenAI(base_url=URL, api_key="not-the-key-of-anybody", max_retries=0)
    refused(openai.AuthenticationError, wrong.models.list)
    refused(
        openai.AuthenticationError, lambda: wrong.completions.create(model="digits", prompt="1=")
    )


def concurrent():
    async def one(many, i):
        events = await many.chat.completions.create(
            model="digits", messages=MESSAGES, max_tokens=4, stream=True, seed=i
        )
        return "".join([c.choices[0].delta.content or "" async for c in events])

    async def all_of(count):
        async with openai.AsyncOpenAI(
            base_url=URL, api_key=KEY, max_retries=0, timeout=300
        ) as many:
            return await asyncio.gather(*(one(many, i) for i in range(count)))

    assert len(asyncio.run(all_of(64))) == 64


def leaving():
    for _ in range(20):
        events = client.completions.create(
            model="digits",
            prompt="12=",
            max_tokens=8,
            n=8,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(events))
        events.close()


for check in (models, completion, prompts, seeds, cuts, stream, chat, errors, concurrent, leaving):
    check()
    print(check.__name__, flush=True)
