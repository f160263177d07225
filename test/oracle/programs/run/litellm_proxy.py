# LiteLLM as a proxy: it stands in front, and OpenAI's client speaks to it.
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

base = os.environ["BASE_URL"]
kinds = {"caller": "chat", "embedder": "embedding", "reranker": "rerank"}
config = {"model_list": [{"model_name": name, "litellm_params": {"model": "hosted_vllm/" + name, "api_base": base, "api_key": "none"},
          "model_info": {"mode": mode}} for name, mode in kinds.items()], "general_settings": {"master_key": "sk-proxy"}}
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
url = f"http://127.0.0.1:{port}"


def up():
    try:
        return urllib.request.urlopen(url + "/health/liveliness", timeout=5).status == 200
    except OSError:
        return False


def ask(client):
    print("== models")
    print(sorted(m.id for m in client.models.list()))

    print("== chat")
    hello = [{"role": "user", "content": "Hello"}]
    print(client.chat.completions.create(model="caller", messages=hello).choices[0].message.content)

    print("== chat, streamed")
    with client.chat.completions.create(model="caller", messages=hello, stream=True) as stream:
        print("".join(c.choices[0].delta.content or "" for c in stream if c.choices))

    print("== a tool")
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "How the weather is in a city.", "parameters": {"type": "object"}}}]
    call = client.chat.completions.create(model="caller", messages=hello, tools=tools).choices[0].message.tool_calls[0]
    print(call.function.name, json.loads(call.function.arguments))

    print("== vectors")
    print(len(client.embeddings.create(model="embedder", input=["hello", "the fleet"], encoding_format="float").data), "vectors")

    print("== rerank")
    ranked = client.post("/rerank", body={"model": "reranker", "query": "memory", "documents": ["a stream", "memory"]}, cast_to=object)
    print(sorted(r["index"] for r in ranked["results"]))

    print("== an error")
    try:
        client.chat.completions.create(model="caller", messages=hello, temperature=9)
    except openai.BadRequestError as e:
        print("BadRequestError", "temperature" in str(e))
        print(str(e)[:300])


with tempfile.TemporaryDirectory() as folder:
    with open(folder + "/config.yaml", "w") as f:
        json.dump(config, f)
    with open(folder + "/log", "w+") as log:
        proxy = subprocess.Popen(["litellm", "--config", folder + "/config.yaml", "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log)
        try:
            for _ in range(600):
                if proxy.poll() is not None or up():
                    break
                time.sleep(0.2)
            if proxy.poll() is not None or not up():
                raise SystemExit("the proxy did not start")
            ask(openai.OpenAI(base_url=url, api_key="sk-proxy", max_retries=0, timeout=60))
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            proxy.terminate()
            proxy.wait(20)
