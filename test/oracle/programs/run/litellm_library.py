# LiteLLM as a library: hosted_vllm/ is its name for a server that speaks OpenAI's API and reranks.
import json
import os

import litellm

litellm.suppress_debug_info = True  # no advice about providers between the answers
base = {"api_base": os.environ["BASE_URL"], "api_key": "none"}
hello = [{"role": "user", "content": "Hello"}]
weather = [{"role": "user", "content": "How is the weather in Paris?"}]
tools = [{"type": "function", "function": {"name": "get_weather", "description": "How the weather is in a city.",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]

print("== completion")
answer = litellm.completion(model="hosted_vllm/caller", messages=hello, **base)
print(answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage.completion_tokens)

print("== completion, streamed")
print("".join(c.choices[0].delta.content or "" for c in litellm.completion(model="hosted_vllm/caller", messages=hello, stream=True, **base)))

print("== a tool")
asked = litellm.completion(model="hosted_vllm/caller", messages=weather, tools=tools, **base).choices[0]
call = asked.message.tool_calls[0]
print(asked.finish_reason, call.function.name, json.loads(call.function.arguments))
told = weather + [asked.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
print(litellm.completion(model="hosted_vllm/caller", messages=told, tools=tools, **base).choices[0].message.content)

print("== a tool, streamed")
chunks = list(litellm.completion(model="hosted_vllm/caller", messages=weather, tools=tools, stream=True, **base))
whole = litellm.stream_chunk_builder(chunks, messages=weather).choices[0]
print(whole.finish_reason, whole.message.tool_calls[0].function.name, json.loads(whole.message.tool_calls[0].function.arguments))

print("== embedding")
vectors = litellm.embedding(model="hosted_vllm/embedder", input=["hello", "the fleet"], **base)
print([len(v["embedding"]) > 0 for v in vectors.data], vectors.usage.prompt_tokens > 0)

print("== rerank")
ranked = litellm.rerank(model="hosted_vllm/reranker", query="memory", documents=["a stream", "memory"], top_n=2, **base)
print(sorted(r["index"] for r in ranked.results))

print("== Anthropic's messages")
message = litellm.completion(model="anthropic/caller", messages=weather, tools=tools, max_tokens=64, api_base=base["api_base"].removesuffix("/v1"), api_key="none").choices[0]
print(message.finish_reason, message.message.tool_calls[0].function.name, json.loads(message.message.tool_calls[0].function.arguments))

print("== an error")
try:
    litellm.completion(model="hosted_vllm/unknown", messages=hello, **base)
except litellm.NotFoundError as e:
    print("NotFoundError", "unknown" in str(e))
