"""What test/oracle/fuzzapi adds to schemathesis: names of models that are there, limits on what an answer costs, what must hold of
every answer, and a tally.

Requests that are meant to be wrong are left alone, but for the model's name. Whether one is changed depends on its body
alone, so that a seed repeats a run."""

import atexit
import collections
import json
import os
import zlib

import schemathesis

MODELS = {"/v1/embeddings": "embed", "/v1/rerank": "rerank", "/v2/rerank": "rerank"}
STREAMS = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
FORMS = ["structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice", "response_format"]
# PROMISED are why a request may be refused with a 5xx while nothing is broken.
PROMISED = {503: {"overloaded", "queue_full", "prefill_memory_exceeded", "aborted_for_memory", "insufficient_memory"}, 507: {"insufficient_memory"}}
ENDS = ["event: message_stop\n", "event: response.completed\n", "event: response.incomplete\n"]
# SLOWEST is how many seconds an answer may take.
SLOWEST = 60

tally = {"statuses": collections.Counter(), "cases": 0, "streams": 0, "slowest": 0.0, "slowest_path": ""}


@schemathesis.hook
def map_case(ctx, case):
    if case is None or not isinstance(case.body, dict):
        return case
    body = case.body
    if isinstance(body.get("model"), str) and body["model"]:
        body["model"] = "default/" + MODELS.get(case.operation.path, "chat")
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return case
    mark = zlib.crc32(json.dumps(body, sort_keys=True, default=repr).encode())
    if mark % 8 != 0:
        tame(body, mark)
        if case.operation.path in STREAMS and mark // 512 % 3 == 0:
            body["stream"] = True
    return case


def tame(body, mark):
    """Makes of a body that fits its schema one that is most likely answered, in little time."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int) and body[name] > 32:
            body[name] = 1 + body[name] % 32
    if body.get("max_tokens") is not None:
        body.pop("max_completion_tokens", None)
    if isinstance(body.get("n"), int) and body["n"] > 4:
        body["n"] = 1 + body["n"] % 4
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("top_logprobs"):
        body["logprobs"] = True
    if body.get("echo"):
        body.pop("logprobs", None)
    present = [name for name in FORMS if body.get(name) is not None]
    for name in present:
        if name != present[mark // 8 % len(present)] or mark // 64 % 2:
            body.pop(name)
    body.pop("previous_response_id", None)
    for number, tool in enumerate(body.get("tools") or []):
        named = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        named["name"] = f"tool_{number}"  # two of one name are refused
    choice = body.get("tool_choice")
    if choice is not None and not body.get("tools"):
        body.pop("tool_choice")
    elif isinstance(choice, dict):
        for named in (choice, choice.get("function")):
            if isinstance(named, dict) and "name" in named:
                named["name"] = "tool_0"
    for name, call_id in (("messages", "tool_call_id"), ("input", "call_id")):
        turns = body.get(name)
        if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns):
            body[name] = answered(turns, call_id)
    if isinstance(body.get("dimensions"), int):
        body["dimensions"] = 1 + body["dimensions"] % 8


def answered(turns, call_id):
    """The turns without results of calls that nothing before them made, and with arguments that hold a JSON object."""
    made, kept = set(), []
    for turn in turns:
        for call in turn.get("tool_calls") or []:
            call["function"]["arguments"] = "{}"
            made.add(call["id"])
        if turn.get("type") == "function_call":
            turn["arguments"] = "{}"
            made.add(turn["call_id"])
        elif call_id in turn and turn[call_id] not in made:
            continue
        kept.append(turn)
    return kept or turns


@schemathesis.hook
def after_call(ctx, case, response):
    tally["cases"] += 1
    tally["statuses"][str(response.status_code)] += 1
    if response.elapsed > tally["slowest"]:
        tally["slowest"], tally["slowest_path"] = response.elapsed, case.operation.path


def code_of(response):
    try:
        return json.loads(response.content)["error"].get("code") or response.headers.get("x-metalfleet-error-code", [""])[0]
    except (ValueError, KeyError, AttributeError, TypeError):
        return response.headers.get("x-metalfleet-error-code", [""])[0]


@schemathesis.check
def promised(ctx, response, case):
    """No 5xx that is not promised, and none without a reason."""
    code = code_of(response)
    if response.status_code >= 500 and code not in PROMISED.get(response.status_code, ()):
        raise AssertionError(f"{response.status_code} {code!r} is not promised")


@schemathesis.check
def in_time(ctx, response, case):
    """Every answer ends in the stated time."""
    if response.elapsed > SLOWEST:
        raise AssertionError(f"the answer took {response.elapsed:.1f} s, {SLOWEST} s are stated")


@schemathesis.check
def named(ctx, response, case):
    """Every answer can be found in the logs."""
    if not response.headers.get("x-request-id"):
        raise AssertionError("the answer has no X-Request-Id")


@schemathesis.check
def whole_stream(ctx, response, case):
    """A stream is events of JSON, and ends with its route's last event."""
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    tally["streams"] += 1
    text = response.content.decode("utf-8")
    events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
    if not text.endswith("\n\n") or not events:
        raise AssertionError(f"the stream breaks off: {text[-200:]!r}")
    for event in events:
        data = [line[6:] for line in event.split("\n") if line.startswith("data: ")]
        if len(data) != 1:
            raise AssertionError(f"an event without data: {event!r}")
        if data[0] != "[DONE]":
            json.loads(data[0])
    last = events[-1] + "\n"
    if last != "data: [DONE]\n" and not any(last.startswith(end) for end in ENDS):
        raise AssertionError(f"the stream ends with {last!r}")


@atexit.register
def write_tally():
    if path := os.environ.get("FUZZAPI_TALLY"):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(tally, f)
