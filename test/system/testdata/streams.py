"""Asks through the gateway with the official OpenAI client, and prints the outcome of each request.

usage: streams.py URL MODEL TOKENS   (METALFLEET_API_KEY holds the key)

It begins two streams of that many tokens, waits until both have text, then sends requests that have to wait for them and
prints {"event": "waiting"}. When it reads a line ("killed") it sends more requests. At the end it prints all outcomes.
Every line on standard output is one JSON object. The client never retries: that is the gateway's part.
"""
import json
import os
import sys
import threading
import time

import openai

URL, MODEL, TOKENS = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = openai.OpenAI(base_url=URL + "/v1", api_key=os.environ["METALFLEET_API_KEY"], max_retries=0, timeout=240)
printing = threading.Lock()


def say(**what):
    with printing:
        print(json.dumps(what), flush=True)


class Request(threading.Thread):
    """One request, and its outcome."""

    def __init__(self, name, kind, tokens, stream):
        super().__init__(daemon=True)
        self.result = {"event": "result", "name": name, "kind": kind, "stream": stream, "mac": "", "pieces": 0,
                       "tokens": 0, "finish": "", "error": "", "code": "", "typed": False, "seconds": 0.0, "text": ""}
        self.tokens, self.stream = tokens, stream
        self.speaks = threading.Event()
        self.start()

    def run(self):
        began = time.monotonic()
        try:
            self.ask()
        except openai.APIError as e:
            # What a user's program catches. Exactly this type is an error inside a stream.
            self.result.update(error=type(e).__name__, code=str(e.code), typed=True, message=str(e))
        except Exception as e:  # pylint: disable=broad-except
            self.result.update(error=type(e).__name__, message=str(e))
        self.result["seconds"] = round(time.monotonic() - began, 2)
        self.speaks.set()

    def ask(self):
        options = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, max_tokens=self.tokens, temperature=0,
            messages=[{"role": "user", "content": "Write a very long story about a lighthouse and its keeper."}], **options)
        self.result["mac"] = raw.headers.get("x-metalfleet-mac", "")
        if not self.stream:
            answer = raw.parse()
            self.result.update(finish=answer.choices[0].finish_reason, tokens=answer.usage.completion_tokens,
                               text=answer.choices[0].message.content)
            return
        for chunk in raw.parse():
            if chunk.usage:
                self.result["tokens"] = chunk.usage.completion_tokens
            for choice in chunk.choices:
                if choice.delta.content:
                    self.result["pieces"] += 1
                    self.result["text"] += choice.delta.content
                if choice.finish_reason:
                    self.result["finish"] = choice.finish_reason
            if self.result["pieces"] == 3:
                self.speaks.set()


def main():
    running = [Request("A", "running", TOKENS, True), Request("B", "running", TOKENS, True)]
    for r in running:
        if not r.speaks.wait(120):
            sys.exit("a stream did not begin within 120 s")
    waiting = [Request("waiting-%d" % i, "waiting", 16, i % 2 == 0) for i in range(4)]
    say(event="waiting", macs=[r.result["mac"] for r in running])
    sys.stdin.readline()
    after = [Request("after-%d" % i, "after", 16, i % 2 == 0) for i in range(4)]
    for r in running + waiting + after:
        r.join(240)
        say(**r.result)


main()
