"""The API as its clients use it: the real `openai` client against a real server."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from processes import Served

ASKED = [{"role": "user", "content": "Ada has 3 boxes of 24 pens and sells 17. How many pens are left?"}]
SHORT = 48

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.serve


def chat(server: Served, **more: Any) -> Any:
    asked = {"model": "nano:target", "messages": ASKED, "max_tokens": SHORT, **more}
    return server.client.chat.completions.create(**asked)


def streamed(server: Served, **more: Any) -> list[Any]:
    return list(chat(server, stream=True, **more))


def test_a_chat_has_its_reasoning_apart_from_its_answer(server: Served) -> None:
    reply = chat(server, model="nano:relaygen", max_tokens=None)
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "stop"
    assert message.reasoning_content.strip()
    assert "\\boxed" in message.content
    assert not {"<think>", "</think>"} & set(message.content + message.reasoning_content)
    for mark in ("<think>", "</think>", "<|im_end|>"):
        assert mark not in message.content + message.reasoning_content


def test_usage_tells_what_each_model_wrote(server: Served) -> None:
    usage = chat(server, model="nano:relaygen", max_tokens=None).usage
    relay = usage.relay
    assert usage.completion_tokens == relay["target_tokens"] + relay["draft_tokens"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert relay["switches"] >= 1
    assert relay["target_share"] == pytest.approx(relay["target_tokens"] / usage.completion_tokens)
    rsd = chat(server, model="nano:rsd@0.99", extra_body={"knobs": {"scorer": "prm"}}).usage.relay
    assert rsd["discarded_tokens"] > 0
    assert rsd["helper_tokens"] > 0
    assert 0 <= rsd["accept_rate"] < 1


@pytest.mark.parametrize("model", ["nano:relaygen", "nano:rsd"])
def test_the_pieces_of_a_stream_are_the_whole(server: Served, model: str) -> None:
    whole = chat(server, model=model).choices[0]
    events = streamed(server, model=model, stream_options={"include_usage": True})
    deltas = [event.choices[0].delta for event in events if event.choices]
    assert "".join(d.content or "" for d in deltas) == whole.message.content
    thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert thought == (whole.message.reasoning_content or "")
    assert deltas[0].role == "assistant"
    assert [e.choices[0].finish_reason for e in events if e.choices][-1] == whole.finish_reason
    assert not events[-1].choices
    assert events[-1].usage.completion_tokens > 0


def test_each_event_has_the_tokens_so_far_when_asked(server: Served) -> None:
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = streamed(server, model="nano:relaygen", max_tokens=40, stream_options=wanted)
    counts = [event.usage.completion_tokens for event in events]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == last.usage.completion_tokens
    assert {event.usage.prompt_tokens for event in events} == {last.usage.prompt_tokens}


def test_the_router_is_named_by_the_model_or_beside_it(server: Served) -> None:
    by_name = chat(server, model="nano:rsd@0.99")
    beside = chat(server, model="nano", extra_body={"router": "rsd", "knobs": {"threshold": 0.99}})
    target = chat(server, model="nano:target")
    assert by_name.choices[0].message == beside.choices[0].message
    assert by_name.usage.relay == {**beside.usage.relay, "prefill_tokens": by_name.usage.relay["prefill_tokens"]}
    assert target.usage.relay["draft_tokens"] == 0


def test_a_trace_comes_when_asked_for(server: Served) -> None:
    assert not hasattr(chat(server), "traces")
    reply = chat(server, extra_body={"trace": True})
    assert reply.traces[0]["router"] == "target"
    assert sum(s["kept_tokens"] for s in reply.traces[0]["segments"]) == reply.usage.completion_tokens
    by_header = chat(server, extra_headers={"X-Baton-Trace": "1"}, stream=True)
    assert list(by_header)[-1].traces[0]["segments"]


def test_a_stream_says_who_wrote_what_when_asked(server: Served) -> None:
    events = streamed(server, model="nano:relaygen", extra_body={"writers": True}, max_tokens=None)
    assert {event.choices[0].writer for event in events[:-1]} == {"target", "draft"}


def test_an_answer_ends_before_a_stop_text(server: Served) -> None:
    raw = {"model": "nano:target", "prompt": "<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n<think>\n"}
    whole = server.client.completions.create(**raw, max_tokens=SHORT).choices[0].text
    stop = whole[10:14]
    reply = server.client.completions.create(**raw, max_tokens=SHORT, stop=[stop, "never there"]).choices[0]
    assert reply.text == whole[: whole.index(stop)]
    assert (reply.finish_reason, reply.stop_reason) == ("stop", stop)
    events = server.client.completions.create(**raw, max_tokens=SHORT, stop=stop, stream=True)
    assert "".join(event.choices[0].text for event in events) == reply.text
    # A chat's reasoning is not searched.
    ended = chat(server, max_tokens=None, stop="answer").choices[0].message
    assert ended.content == "\n\nThe final "
    assert ended.reasoning_content.strip()


def test_a_relay_stops_where_a_text_spans_two_writers(server: Served) -> None:
    raw = {
        "model": "nano:relaygen",
        "prompt": "<|im_start|>user\nAda has 3 boxes of 24 pens.<|im_end|>\n<|im_start|>assistant\n<think>\n",
    }
    reply = server.client.completions.create(**raw, max_tokens=200, extra_body={"trace": True})
    segments = [s for s in reply.traces[0]["segments"] if s["kept"] and s["text"]]
    assert len(segments) > 1
    stop = segments[0]["text"][-3:] + segments[1]["text"][:3]
    cut = server.client.completions.create(**raw, max_tokens=200, stop=stop).choices[0]
    assert cut.text == reply.choices[0].text[: reply.choices[0].text.index(stop)]


def test_the_budget_is_kept(server: Served) -> None:
    reply = chat(server, max_tokens=7)
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (7, "length")
    both = chat(server, max_tokens=7, max_completion_tokens=5)
    assert both.usage.completion_tokens == 5


def test_several_answers_and_prompts(server: Served) -> None:
    reply = chat(server, n=3, temperature=1.0, seed=5)
    texts = [choice.message.reasoning_content for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [c.message.reasoning_content for c in chat(server, n=3, temperature=1.0, seed=5).choices] == texts
    events = streamed(server, n=3, temperature=1.0, seed=5)
    for n, text in enumerate(texts):
        deltas = [e.choices[0].delta for e in events if e.choices[0].index == n]
        assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == text
    two = server.client.completions.create(model="nano:target", prompt=["1 + 1 =", "2 + 2 ="], n=2, max_tokens=4)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]


def test_seeds_repeat_and_their_absence_does_not(server: Served) -> None:
    def thought(**more: Any) -> str:
        return chat(server, temperature=1.5, **more).choices[0].message.reasoning_content

    assert thought(seed=1) == thought(seed=1) != thought(seed=2)
    assert thought() != thought()


def test_sampling_is_as_asked(server: Served) -> None:
    greedy = chat(server).choices[0].message
    filtered = [
        chat(server, temperature=2.0, top_p=1e-9),
        chat(server, temperature=2.0, extra_body={"top_k": 1}),
        chat(server, temperature=2.0, extra_body={"min_p": 0.999}),
    ]
    assert all(reply.choices[0].message == greedy for reply in filtered)


def test_log_probabilities_of_a_chat(server: Served) -> None:
    reply = chat(server, model="nano:relaygen", logprobs=True, top_logprobs=2, max_tokens=None)
    content, tokens = reply.choices[0].message.content, reply.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == content
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
    events = streamed(server, model="nano:relaygen", logprobs=True, top_logprobs=2, max_tokens=None)
    told = [t for e in events if e.choices[0].logprobs for t in e.choices[0].logprobs.content]
    assert told == tokens


def test_log_probabilities_of_a_text_are_those_of_the_tokens_drawn(server: Served) -> None:
    asked = {"model": "nano:target", "prompt": "1 + 1 =", "max_tokens": 12, "temperature": 1.5, "seed": 3}
    reply = server.client.completions.create(**asked, logprobs=1).choices[0]
    assert "".join(reply.logprobs.tokens) == reply.text
    likeliest = [max(row.values()) for row in reply.logprobs.top_logprobs]
    assert all(own <= best + 1e-9 for own, best in zip(reply.logprobs.token_logprobs, likeliest, strict=True))
    # Some token was not the likeliest one, and its own log-probability is told nevertheless.
    assert any(own < best - 0.1 for own, best in zip(reply.logprobs.token_logprobs, likeliest, strict=True))
    assert all(own > -100 for own in reply.logprobs.token_logprobs)


def test_earlier_thinking_is_dropped_as_the_template_wants(server: Served) -> None:
    said = [*ASKED, {"role": "assistant", "content": "55"}, {"role": "user", "content": "Are you sure?"}]
    plain = chat(server, messages=said)
    inline, apart = (
        chat(server, messages=[ASKED[0], {"role": "assistant", **turn}, said[2]])
        for turn in ({"content": "<think>\n72 - 17\n</think>\n\n55"}, {"content": "55", "reasoning_content": "72 - 17"})
    )
    assert plain.usage.prompt_tokens == inline.usage.prompt_tokens == apart.usage.prompt_tokens
    assert plain.choices[0].message == inline.choices[0].message == apart.choices[0].message


def test_thinking_can_be_left_out(server: Served) -> None:
    for asked in ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, {"reasoning_effort": "none"}):
        message = chat(server, **asked).choices[0].message
        assert message.reasoning_content is None
        assert message.content


def test_token_ids_are_a_prompt_too(server: Served) -> None:
    asked = {"model": "nano:relaygen", "max_tokens": 8}
    ids = server.client.completions.create(**asked, prompt="1 + 1 =", extra_body={"trace": True}).traces[0]["prompts"]
    by_ids = server.client.completions.create(**asked, prompt=ids["target"])
    assert by_ids.choices[0].text == server.client.completions.create(**asked, prompt="1 + 1 =").choices[0].text


def test_characters_are_never_cut(server: Served) -> None:
    """At this temperature single bytes of the vocabulary are drawn, which make characters only by chance."""
    asked = {"model": "nano:target", "prompt": "é", "max_tokens": 150, "temperature": 4.0, "seed": 1}
    whole = server.client.completions.create(**asked).choices[0].text
    assert not whole.isascii()
    body = {**asked, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=server.headers, timeout=60) as reply:
        events = [data.decode() for data in b"".join(reply.iter_bytes()).split(b"\n\n") if data]
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-1]]
    assert len(pieces) > 3
    assert "".join(pieces) == whole


def test_models_are_listed_by_their_routers(server: Served) -> None:
    names = [model.id for model in server.client.models.list()]
    assert {"nano", "nano:target", "nano:draft", "nano:relaygen", "nano:rsd", "nano:lookahead"} <= set(names)


WORN = {"router": {"router": "majority", "knobs": {"n": 999}}}
REFUSED: list[tuple[dict[str, Any], str, int]] = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", 400),
    ({"response_format": {"type": "json_object"}}, "response_format", 400),
    ({"presence_penalty": 0.5}, "presence_penalty", 400),
    ({"logit_bias": {"5": 1}}, "logit_bias", 400),
    ({"extra_body": {"temprature": 1}}, "temprature", 400),
    ({"extra_body": {"ignore_eos": True}}, "ignore_eos", 400),
    ({"temperature": -1}, "temperature", 400),
    ({"n": 99}, "n", 400),
    ({"max_tokens": 99999}, "max_tokens", 400),
    ({"stop": [""]}, "stop", 400),
    ({"messages": []}, "messages", 400),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", 400),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages", 400),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages", 400),
    ({"messages": [{"role": "user", "content": "many " * 3000}]}, "messages", 400),
    ({"top_logprobs": 2}, "top_logprobs", 400),
    ({"model": "nano:bild", "logprobs": True}, "logprobs", 400),
    ({"model": "other:relaygen"}, "model", 404),
    ({"model": "nano:os:system"}, "model", 404),
    ({"model": "nano:rsd@much"}, "model", 400),
    ({"model": "nano:target@0.5"}, "model", 400),
    ({"extra_body": {"router": "rsd", "knobs": {"treshold": 1}}}, "knobs", 400),
    ({"extra_body": {"router": "rsd", "knobs": {"gate": 5}}}, "knobs", 400),
    ({"extra_body": {"router": "relaygen", "knobs": {"profile": "/etc/passwd"}}}, "knobs", 400),
    ({"extra_body": {"router": "majority", "knobs": {"extract": "os:system"}}}, "knobs", 400),
    ({"extra_body": {"router": "majority", "knobs": {"n": 1000}}}, "knobs", 400),
    ({"extra_body": {"router": "bail-out", "knobs": {"router": "os:system"}}}, "knobs", 400),
    ({"extra_body": {"router": "bail-out", "knobs": WORN}}, "knobs", 400),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "param", "status"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_kept_is_refused_by_name(server: Served, asked: dict[str, Any], param: str, status: int) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        chat(server, **asked)
    assert refused.value.status_code == status
    told = refused.value.body
    assert isinstance(told, dict)
    assert told["param"].startswith(param)
    assert param in told["message"]
    assert "\n" not in told["message"]


def test_harmless_fields_and_neutral_values_are_taken(server: Served) -> None:
    chat(server, user="u", metadata={"a": "b"}, presence_penalty=0, frequency_penalty=0.0, tools=[], logit_bias={},
         response_format={"type": "text"}, tool_choice="none", store=False)  # fmt: skip


def test_a_long_text_is_read_while_others_are_answered(server: Served) -> None:
    told: list[httpx.Response] = []
    # As large as a body may be: finding its tokens takes more than a second.
    sending = threading.Thread(target=lambda: told.append(server.post("/v1/completions", prompt="word " * 200_000)))
    sending.start()
    answered = 0
    while sending.is_alive():
        assert server.get("/health").status_code == 200
        answered += sending.is_alive()
    assert told[0].json()["error"]["code"] == "context_length_exceeded"
    assert answered >= 5


BROKEN = ["", "{", "[]", "null", '"x"', '{"n": NaN}', '{"n": ' + "9" * 5000 + "}", "[" * 5000, '{"model": "\\ud800"}',
          '{"\\ud800": 1}', '{"messages": [{"role": "user", "content": "\\udfff"}]}',
          '{"n":' * 40 + "1" + "}" * 40]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_body_is_told_what_it_is(server: Served, body: str) -> None:
    headers = {**server.headers, "content-type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/completions"):
        reply = httpx.post(server.url + path, content=body, headers=headers)
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["message"]


def test_the_events_are_those_of_the_interface(server: Served) -> None:
    body = {"model": "nano:target", "messages": ASKED, "max_tokens": 4, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=server.headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["object"] == "chat.completion.chunk" for line in lines[:-1])
