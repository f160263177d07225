# What the official Python client of the Anthropic API sees: a call for each line on the standard input, a reply for each on
# the standard output. Started by test/oracle/clients; BASE_URL says where the server is. Answers that are not as the client's own
# types say are errors.
import os

import anthropic
from pydantic import BaseModel

import lines

client = anthropic.Anthropic(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, timeout=120, _strict_response_validation=True)


def plain(value):
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", warnings="none", exclude_unset=True)
    return value


def whole(raw):
    return {"result": plain(raw.parse()), "headers": dict(raw.headers), "request_id": raw.headers.get("request-id")}


def events(raw):
    return {"events": [plain(e) for e in raw.parse()], "headers": dict(raw.headers), "request_id": raw.headers.get("request-id")}


def helper(**args):
    with client.messages.stream(**args) as stream:
        text = "".join(stream.text_stream)
        return {"text": text, "result": plain(stream.get_final_message())}


CALLS = {
    "messages.create": lambda **a: whole(client.messages.with_raw_response.create(**a)),
    "messages.stream": lambda **a: events(client.messages.with_raw_response.create(stream=True, **a)),
    "messages.helper": helper,
    "messages.count": lambda **a: whole(client.messages.with_raw_response.count_tokens(**a)),
    "models.list": lambda **a: {"result": {"data": [plain(m) for m in client.models.list(**a)]}},
    "models.get": lambda **a: whole(client.models.with_raw_response.retrieve(**a)),
}


def failure(e):
    out = {"class": type(e).__name__, "message": str(e)}
    if isinstance(e, anthropic.APIStatusError):
        body = e.body if isinstance(e.body, dict) else {}
        inner = body.get("error") or {}
        out.update(status=e.status_code, request_id=e.request_id, type=inner.get("type"), message=inner.get("message", str(e)))
        out.update(code=e.response.headers.get("x-metalfleet-error-code"))
    if isinstance(e, anthropic.APIResponseValidationError):
        out["message"] += f" {e.__cause__}"
    return {"error": out}


lines.play(client, CALLS, anthropic.AnthropicError, failure)
