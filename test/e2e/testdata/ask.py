"""What an app developer's program does, with the official client: it lists the models, streams an answer, and prints
what it saw as one JSON object. usage: ask.py BASE-URL MODEL [SECONDS]   (it tries again that long before the first byte)"""
import json
import sys
import time

import openai

url, model = sys.argv[1], sys.argv[2]
until = time.monotonic() + float(sys.argv[3] if len(sys.argv) > 3 else 0)
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


def ask():
    seen = {"models": [m.id for m in client.models.list()], "pieces": 0, "text": "", "finish": "", "tokens": 0, "prompt": 0}
    began = time.monotonic()
    stream = client.chat.completions.create(model=model, max_tokens=24, stream=True, stream_options={"include_usage": True},
                                            temperature=0, messages=[{"role": "user", "content": "Which Mac answers?"}])
    for chunk in stream:
        seen["pieces"] += 1
        for choice in chunk.choices:
            if choice.delta.content:
                seen.setdefault("firstMilliseconds", round(1000 * (time.monotonic() - began)))
                seen.setdefault("firstAt", time.time())
            seen["text"] += choice.delta.content or ""
            seen["finish"] = choice.finish_reason or seen["finish"]
        if chunk.usage:
            seen["tokens"], seen["prompt"] = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
    return seen


while True:
    try:
        print(json.dumps(ask()))
        break
    except openai.OpenAIError as e:
        if time.monotonic() > until:
            print(json.dumps({"error": type(e).__name__, "message": str(e)}))
            sys.exit(1)
        time.sleep(0.5)
