"""Asks through the gateway with keys that are good, wrong, too narrow and too slow, with the official OpenAI client.

usage: refusals.py URL MODEL   (GOOD_KEY, NARROW_KEY and SLOW_KEY hold keys; the last may ask once a minute)

Prints one JSON object: for each case the outcome that the client saw. It never retries.
"""
import json
import os
import sys

import openai

URL, MODEL = sys.argv[1], sys.argv[2]


def client(key):
    return openai.OpenAI(base_url=URL + "/v1", api_key=key, max_retries=0, timeout=240)


def chat(with_key):
    return with_key.chat.completions.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "Say yes."}])


def outcome(ask):
    """The exception's type, status and code, and of a rate its headers."""
    try:
        ask()
    except openai.APIStatusError as e:
        said = "%s %d %s" % (type(e).__name__, e.status_code, e.code)
        if isinstance(e, openai.RateLimitError):
            wait, limit = e.response.headers.get("retry-after", ""), e.response.headers.get("x-ratelimit-limit-requests", "")
            said += " of %s, again %s" % (limit, "later" if wait.isdigit() and 0 < int(wait) <= 60 else "never")
        return said
    return "answered"


good, narrow, slow = (client(os.environ[name]) for name in ("GOOD_KEY", "NARROW_KEY", "SLOW_KEY"))
print(json.dumps({
    "good": outcome(lambda: chat(good)),
    "wrong": outcome(lambda: chat(client("mf_good_" + "A" * 26))),
    "foreign": outcome(lambda: client("sk-none").models.list()),
    "narrow": outcome(lambda: chat(narrow)),
    "narrow, one model": outcome(lambda: narrow.models.retrieve(MODEL)),
    "narrow, models": str(len(narrow.models.list().data)),
    "good, models": str(len(good.models.list().data)),
    "slow": outcome(lambda: slow.models.list()),
    "slow, again": outcome(lambda: chat(slow)),
}))
