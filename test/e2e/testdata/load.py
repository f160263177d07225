"""Streams answers with the official client, many at once, until the file /tmp/stop exists; then lets the running ones end
and prints, as its last line, what it saw as one JSON object. It never retries.
usage: load.py BASE-URL MODEL STREAMS TOKENS   (each answer must have exactly TOKENS tokens)"""
import asyncio
import json
import os
import sys
import time

import openai

url, model, streams, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
seen = {"done": 0, "failed": 0, "truncated": 0, "running": 0, "longestGapMilliseconds": 0, "errors": []}


async def stream(client, n):
    """One answer: how it ended."""
    last, got, finish = time.monotonic(), 0, ""
    answer = await client.chat.completions.create(
        model=model, max_tokens=tokens, stream=True, stream_options={"include_usage": True}, temperature=0,
        messages=[{"role": "user", "content": f"Which Mac answers question {n}?"}])
    async for chunk in answer:
        now = time.monotonic()
        seen["longestGapMilliseconds"] = max(seen["longestGapMilliseconds"], round(1000 * (now - last)))
        last = now
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
        if chunk.usage:
            got = chunk.usage.completion_tokens
    return finish == "length" and got == tokens, f"finish {finish!r} after {got} of {tokens} tokens"


async def worker(client, number):
    n = 0
    while not os.path.exists("/tmp/stop"):
        n += 1
        seen["running"] += 1
        try:
            whole, said = await stream(client, 1000 * number + n)
            seen["done" if whole else "truncated"] += 1
        except Exception as e:  # anything that a client would see
            whole, said = False, f"{type(e).__name__}: {e} ({e.__cause__!r})"
            seen["failed"] += 1
        seen["running"] -= 1
        if not whole and len(seen["errors"]) < 20:
            seen["errors"].append(f"{time.strftime('%H:%M:%S')} {said}"[:500])


async def report():
    while True:
        await asyncio.sleep(1)
        print(json.dumps(seen), flush=True)


async def main():
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    reporting = asyncio.create_task(report())
    await asyncio.gather(*(worker(client, i) for i in range(streams)))
    reporting.cancel()
    print(json.dumps(seen), flush=True)


asyncio.run(main())
