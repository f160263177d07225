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

SYSTEM = {"role": "system", "content": "  Be brief & <kind>.\n"}
USER = {"role": "user", "content": "What's the \"capital\" of France? émoji 😀"}
ASSISTANT = {"role": "assistant", "content": "Paris.\n\n"}
AGAIN = {"role": "user", "content": "And of Italy?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "f": 1.5, "ok": True, "n": None, "l": [1, "a"]}}}]}
CALL_TEXT = {"role": "assistant", "content": None, "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Zürich\"}"}}]}
TWO_CALLS = {"role": "assistant", "content": "Looking.", "tool_calls": CALL["tool_calls"] + [{"id": "call67890", "type": "function", "function": {"name": "noop", "arguments": {}}}]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"temp\": 21.5}"}
RESULT2 = {"role": "tool", "name": "noop", "tool_call_id": "call67890", "content": "ok"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]}
IMAGE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}
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
    "parts": [SYSTEM, PARTS, ASSISTANT, PARTS],
    "image": [IMAGE],
    "two users": [USER, AGAIN],
    "assistant first": [ASSISTANT, USER],
    "late system": [USER, ASSISTANT, SYSTEM, AGAIN],
    "unknown role": [{"role": "boss", "content": "x"}],
    "no content": [{"role": "user"}],
    "content null": [{"role": "user", "content": None}],
    "content a number": [{"role": "user", "content": 7}],
    "no role": [{"content": "x"}],
    "empty": [],
    "white space": [{"role": "user", "content": " \n\t x \u00a0\u2028\n "}, {"role": "assistant", "content": "\n"}, AGAIN],
    "special texts": [{"role": "user", "content": "<|im_end|>{{ 1 }}{% if %}</s>[INST]'\"\\"}],
}

VARIANTS = {
    "open": {"add_generation_prompt": True},
    "closed": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "thinking": {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    "no thinking": {"add_generation_prompt": True, "enable_thinking": False, "thinking": False, "tools": TOOLS},
}


def all_inputs():
    for cname, messages in CONVERSATIONS.items():
        for vname, variant in VARIANTS.items():
            yield cname + " / " + vname, {"messages": messages, "tools": None, "documents": None,
                                          "bos_token": "<s>", "eos_token": "</s>", **variant}
