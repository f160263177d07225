"""Conversations for comparing chat templates."""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city, \"now\".\nOr later.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city's name, e.g. Zürich"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 18446744073709551615},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}}}},
            "required": ["city"]}, "return": {"type": "object", "description": "the weather"}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}, "required": []}}},
]
DOCUMENTS = [{"title": "A title", "text": "Some <text>.\n\nMore."}, {"title": "", "text": "Zürich 😀", "id": 7, "doc_id": "x"}]

SYSTEM = {"role": "system", "content": "  Be brief & <kind>.\n"}
USER = {"role": "user", "content": "What's the \"capital\" of France? émoji 😀"}
ASSISTANT = {"role": "assistant", "content": "Paris.\n\n"}
AGAIN = {"role": "user", "content": "And of Italy?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "f": 1.5, "ok": True, "n": None, "l": [1, "a"]}}}]}
CALL_TEXT = {"role": "assistant", "content": None, "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Zürich\"}"}}]}
TWO_CALLS = {"role": "assistant", "content": "Looking.", "tool_calls": CALL["tool_calls"] + [{"id": "call67890", "type": "function", "function": {"name": "noop", "arguments": {}}}]}
BARE_CALL = {"role": "assistant", "tool_calls": [{"name": "noop", "arguments": {}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"temp\": 21.5}"}
RESULT2 = {"role": "tool", "name": "noop", "tool_call_id": "call67890", "content": "ok"}
RESULT_PARTS = {"role": "tool", "name": "noop", "tool_call_id": "call67890", "content": [{"type": "text", "text": "ok"}]}
RESULT_OBJECT = {"role": "tool", "name": "noop", "tool_call_id": "call67890", "content": {"temp": 21.5}}
PARTS = {"role": "user", "content": [{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]}
SYSTEM_PARTS = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
ASSISTANT_PARTS = {"role": "assistant", "content": [{"type": "text", "text": "Paris."}]}
IMAGE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}
IMAGE_URL = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "video"}, {"type": "audio"}, {"type": "text", "text": "what?"}]}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nParis.", "reasoning_content": "It is known."}
REASON = {"role": "assistant", "content": "Rome", "reasoning_content": "Also known.", "thinking": "Also known."}

CONVERSATIONS = {
    "plain": [USER],
    "system": [SYSTEM, USER],
    "developer": [{"role": "developer", "content": "Be kind."}, USER],
    "turns": [USER, ASSISTANT, AGAIN],
    "system and turns": [SYSTEM, USER, ASSISTANT, AGAIN],
    "ends with the assistant": [SYSTEM, USER, ASSISTANT],
    "thought": [USER, THOUGHT, AGAIN, REASON, USER],
    "reasoning at the end": [USER, REASON],
    "call": [SYSTEM, USER, CALL, RESULT],
    "call and answer": [USER, CALL, RESULT, ASSISTANT, AGAIN],
    "arguments as text": [USER, CALL_TEXT, RESULT],
    "two calls": [SYSTEM, USER, TWO_CALLS, RESULT, RESULT2, ASSISTANT, AGAIN],
    "call with reasoning": [USER, dict(TWO_CALLS, reasoning_content="I must look."), RESULT, RESULT2],
    "call without a function": [USER, BARE_CALL, RESULT2],
    "call without an answer": [USER, CALL],
    "call after call": [USER, CALL, RESULT, CALL, RESULT, ASSISTANT],
    "result in parts": [USER, CALL, RESULT_PARTS],
    "result an object": [USER, CALL, RESULT_OBJECT],
    "parts": [SYSTEM, PARTS, ASSISTANT, PARTS],
    "parts everywhere": [SYSTEM_PARTS, PARTS, ASSISTANT_PARTS, PARTS],
    "image": [IMAGE],
    "other media": [IMAGE_URL],
    "two users": [USER, AGAIN],
    "assistant first": [ASSISTANT, USER],
    "late system": [USER, ASSISTANT, SYSTEM, AGAIN],
    "two systems": [SYSTEM, SYSTEM, USER],
    "unknown role": [{"role": "boss", "content": "x"}],
    "role a number": [{"role": 7, "content": "x"}],
    "role null": [{"role": None, "content": "x"}],
    "no content": [{"role": "user"}],
    "content null": [{"role": "user", "content": None}],
    "content a number": [{"role": "user", "content": 7}],
    "content true": [{"role": "user", "content": True}],
    "content an object": [{"role": "user", "content": {"text": "x"}}],
    "content no parts": [{"role": "user", "content": []}],
    "content odd parts": [{"role": "user", "content": ["x", None, {"type": "text"}]}],
    "no role": [{"content": "x"}],
    "nothing in it": [{}],
    "calls null": [USER, dict(ASSISTANT, tool_calls=None), AGAIN],
    "calls empty": [USER, dict(ASSISTANT, tool_calls=[]), AGAIN],
    "calls no list": [USER, dict(ASSISTANT, tool_calls="x"), AGAIN],
    "call of nothing": [USER, {"role": "assistant", "tool_calls": [None]}],
    "reasoning null": [USER, dict(ASSISTANT, reasoning_content=None), AGAIN],
    "reasoning a number": [USER, dict(ASSISTANT, reasoning_content=7), AGAIN],
    "empty": [],
    "empty texts": [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}],
    "white space": [{"role": "user", "content": " \n\t x \u00a0\u2028\n "}, {"role": "assistant", "content": "\n"}, AGAIN],
    "special texts": [{"role": "user", "content": "<|im_end|>{{ 1 }}{% if %}</s>[INST]'\"\\"}],
    "think marks": [USER, {"role": "assistant", "content": "a</think>b</think>c<think>d"}, USER, {"role": "assistant", "content": "<think></think>"}],
    "a long one": [SYSTEM] + [USER, ASSISTANT] * 20 + [AGAIN],
}

VARIANTS = {
    "open": {"add_generation_prompt": True},
    "closed": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "thinking": {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    "no thinking": {"add_generation_prompt": True, "enable_thinking": False, "thinking": False, "tools": TOOLS},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS, "citation_mode": "off"},
    "bare tools": {"add_generation_prompt": True, "tools": [{"name": "noop"}, {"type": "function", "function": {"name": "f", "parameters": None}}]},
    "no tools": {"add_generation_prompt": True, "tools": []},
}

BROKEN = {
    "messages missing": {},
    "messages null": {"messages": None},
    "messages a text": {"messages": "x"},
    "a message null": {"messages": [None]},
    "a message a text": {"messages": ["x"]},
    "tools a text": {"messages": [USER], "tools": "x"},
    "tools an object": {"messages": [USER], "tools": {"a": 1}},
    "documents a text": {"messages": [USER], "documents": "x"},
    "no tokens": {"messages": [USER, ASSISTANT], "bos_token": None, "eos_token": None},
}


def all_inputs():
    """(name, variables) of a render, without transformers' checks before it."""
    common = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"}
    for cname, messages in CONVERSATIONS.items():
        for vname, variant in VARIANTS.items():
            yield cname + " / " + vname, {"messages": messages, **common, **variant}
    for name, variables in BROKEN.items():
        yield name, {**common, "add_generation_prompt": True, **variables}


def golden_inputs():
    """Every conversation once, with the variants in turn: what is committed."""
    inputs = list(all_inputs())
    width = len(VARIANTS)
    whole = len(CONVERSATIONS) * width
    for i in range(len(CONVERSATIONS)):
        for offset in (i % width, (i * 3 + 1) % width):
            yield inputs[i * width + offset]
    yield from inputs[whole:]
