# What the official Python client of the OpenAI API sees: a call for each line on the standard input, a reply for each on
# the standard output. Started by test/oracle/clients; BASE_URL says where the server is. Answers that are not as the client's own
# types say are errors.
import os
from typing import Literal

import openai
from pydantic import BaseModel

import lines

options = dict(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, timeout=120)
client = openai.OpenAI(**options, _strict_response_validation=True)


# Some answers have types that the API itself does not keep: vectors in base64, for which the client asks by itself, the
# events of a text completion, which have no finish reason yet, and an echoed prompt, whose first token has no log-probability.
lax = openai.OpenAI(**options)


class City(BaseModel):
    name: Literal["Paris", "Berlin"]
    large: bool


def plain(value):
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", warnings="none", exclude_unset=True)
    return value


def whole(raw):
    return {"result": plain(raw.parse()), "headers": dict(raw.headers), "request_id": raw.request_id}


def events(raw):
    return {"events": [plain(e) for e in raw.parse()], "headers": dict(raw.headers), "request_id": raw.request_id}


def page(raw):
    return {"result": {"data": [plain(m) for m in raw.parse()]}, "headers": dict(raw.headers), "request_id": raw.request_id}


def helper(manager):
    with manager as stream:
        seen = list(stream)
        # The helper of responses has a final one only where the answer was not cut.
        final = stream.get_final_completion() if hasattr(stream, "get_final_completion") else seen[-1].response
        return {"types": [e.type for e in seen], "result": plain(final)}


def parsed(answer):
    out = plain(answer)
    for i, c in enumerate(answer.choices):
        out["choices"][i]["message"]["parsed"] = plain(c.message.parsed)
    return {"result": out, "request_id": answer._request_id}


def parsed_response(response):
    return {"result": {**plain(response), "parsed": plain(response.output_parsed)}}


def parsed_stream(**args):
    with client.responses.stream(text_format=City, **args) as stream:
        types = [e.type for e in stream]
        return {"types": types, **parsed_response(stream.get_final_response())}


def cancelled(**args):
    with client.responses.create(stream=True, **args) as stream:
        seen, result = [], None
        for event in stream:
            seen.append(plain(event))
            if result is None and event.type == "response.output_text.delta":
                result = client.responses.cancel(seen[0]["response"]["id"])
        return {"events": seen, "result": plain(result)}


def gone(id):
    return {"result": client.responses.with_raw_response.delete(id).http_response.json()}


CALLS = {
    "chat.create": lambda **a: whole(client.chat.completions.with_raw_response.create(**a)),
    "chat.stream": lambda **a: events(client.chat.completions.with_raw_response.create(stream=True, **a)),
    "chat.helper": lambda **a: helper(client.chat.completions.stream(**a)),
    "chat.parse": lambda **a: parsed(client.chat.completions.parse(response_format=City, **a)),
    "completions.create": lambda **a: whole((lax if a.get("echo") else client).completions.with_raw_response.create(**a)),
    "completions.stream": lambda **a: events(lax.completions.with_raw_response.create(stream=True, **a)),
    "embeddings.create": lambda **a: whole((client if "encoding_format" in a else lax).embeddings.with_raw_response.create(**a)),
    "models.list": lambda: page(client.models.with_raw_response.list()),
    "models.get": lambda **a: whole(client.models.with_raw_response.retrieve(**a)),
    "post": lambda path, body: {"result": client.post(path, body=body, cast_to=object)},
    "responses.create": lambda **a: whole(client.responses.with_raw_response.create(**a)),
    "responses.stream": lambda **a: events(client.responses.with_raw_response.create(stream=True, **a)),
    "responses.helper": lambda **a: helper(client.responses.stream(**a)),
    "responses.parse": lambda **a: parsed_response(client.responses.parse(text_format=City, **a)),
    "responses.parse_stream": parsed_stream,
    "responses.input_tokens": lambda **a: whole(client.responses.input_tokens.with_raw_response.count(**a)),
    "responses.get": lambda id: whole(client.responses.with_raw_response.retrieve(id)),
    "responses.delete": gone,
    "responses.cancel": lambda id: whole(client.responses.with_raw_response.cancel(id)),
    "responses.cancelled": cancelled,
    "responses.items": lambda id, **a: page(client.responses.input_items.with_raw_response.list(id, **a)),
}


def failure(e):
    out = {"class": type(e).__name__, "message": str(e)}
    if isinstance(e, openai.APIStatusError):
        out.update(status=e.status_code, request_id=e.request_id)
    if isinstance(e, openai.APIError):
        body = e.body if isinstance(e.body, dict) else {}
        out.update(code=e.code, param=e.param, type=e.type, message=body.get("message", e.message))
    if isinstance(e, openai.APIResponseValidationError):
        out["message"] += f" {e.__cause__}"
    return {"error": out}


lines.play(client, CALLS, openai.OpenAIError, failure)
