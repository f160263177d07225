"""Model folders whose chat templates and special tokens lie in different
files, rendered by transformers' own tokenizers (from_pretrained, then
apply_chat_template), for metal/chat.ReadFolder."""

import itertools
import json
import pathlib

import conversations as c
import reference

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

SHOW = ("{{ bos_token }}|{{ eos_token }}|{{ unk_token is defined }}|{{ pad_token }}|{{ image_token }}|{{ audio_token }}|{{ messages | tojson }}|{{ tools | tojson }}|"
        "{{ documents | tojson }}|{{ add_generation_prompt }}|{{ enable_thinking is defined }}")
STRINGS = {"bos_token": "<s>", "eos_token": "</s>"}
OBJECTS = {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
           "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}, "unk_token": None, "add_bos_token": True}
NAMED = [{"name": "default", "template": "D" + SHOW}, {"name": "tool_use", "template": "T" + SHOW}, {"name": "rag", "template": "{% broken"}]

# files by name; text, or what becomes JSON
FOLDERS = {
    "a file": {"tokenizer_config.json": STRINGS, "chat_template.jinja": SHOW},
    "a file with other line ends": {"tokenizer_config.json": STRINGS, "chat_template.jinja": "a\r\n{% if 1 %}\r\nb\r\n{% endif %}\r\n"},
    "the file before the configuration": {"tokenizer_config.json": {**STRINGS, "chat_template": "no"}, "chat_template.jinja": SHOW},
    "the configuration": {"tokenizer_config.json": {**STRINGS, "chat_template": SHOW}},
    "tokens as objects": {"tokenizer_config.json": {**OBJECTS, "chat_template": SHOW}},
    "named ones": {"tokenizer_config.json": {**STRINGS, "chat_template": NAMED}},
    "named without tools": {"tokenizer_config.json": {**STRINGS, "chat_template": NAMED[:1]}},
    "named, only tools": {"tokenizer_config.json": {**STRINGS, "chat_template": NAMED[1:2]}},
    "named twice": {"tokenizer_config.json": {**STRINGS, "chat_template": NAMED + [{"name": "default", "template": "2"}]}},
    "a separate file": {"tokenizer_config.json": {**STRINGS, "chat_template": "no"}, "chat_template.jinja": "D" + SHOW, "additional_chat_templates/tool_use.jinja": "T" + SHOW},
    "only a separate file": {"tokenizer_config.json": {**STRINGS, "chat_template": "no"}, "additional_chat_templates/tool_use.jinja": "T" + SHOW},
    "a file instead of the default": {"tokenizer_config.json": STRINGS, "chat_template.jinja": "no", "additional_chat_templates/default.jinja": SHOW},
    "the map overrides": {"tokenizer_config.json": {**STRINGS, "chat_template": SHOW}, "special_tokens_map.json": {"eos_token": {"content": "<end>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}, "pad_token": "<pad>"}},
    "the map does not": {"tokenizer_config.json": {**STRINGS, "chat_template": SHOW, "added_tokens_decoder": {}}, "special_tokens_map.json": {"eos_token": "<end>"}},
    "the model's own tokens": {"tokenizer_config.json": {**STRINGS, "chat_template": SHOW, "image_token": "<image>", "extra_special_tokens": {"audio_token": "<audio>"}}},
    "a list of tokens": {"tokenizer_config.json": {**STRINGS, "chat_template": SHOW, "additional_special_tokens": ["<x>"], "pad_token": "<pad>"}},
    "no tokens": {"tokenizer_config.json": {"chat_template": SHOW}},
    "no template": {"tokenizer_config.json": STRINGS},
    "a template that is none": {"tokenizer_config.json": {**STRINGS, "chat_template": "{% if %}"}},
    "a template that is a number": {"tokenizer_config.json": {**STRINGS, "chat_template": 7}},
    "a token that is a number": {"tokenizer_config.json": {"bos_token": 7, "chat_template": SHOW}},
    "chatml": {"tokenizer_config.json": {**STRINGS, "chat_template": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}"}},
    "reasoning": {"tokenizer_config.json": {**STRINGS, "chat_template": "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content is defined }}{{ m.thinking }}{{ m.content is defined }}{% endfor %}{{ raise_exception('no tools') if tools }}"}},
}
# An empty list of tools is no tools to us; transformers hands it on.
ARGUMENTS = {"plain": {}, "open": {"add_generation_prompt": True}, "tools": {"add_generation_prompt": True, "tools": c.TOOLS}, "documents": {"documents": c.DOCUMENTS, "enable_thinking": False},
             "own tokens": {"bos_token": "<mine>"}, "tools that are none": {"tools": ["x"]}, "documents that are none": {"documents": ["x"]}}
SOME = ["plain", "system and turns", "thought", "reasoning at the end", "reasoning null", "two calls", "arguments as text", "call without a function", "parts everywhere", "content null", "no content", "no role", "nothing in it", "calls null", "empty"]


def write_folder(root, name, files):
    folder = pathlib.Path(root) / name.replace(" ", "-")
    (folder / "additional_chat_templates").mkdir(parents=True, exist_ok=True)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    for file, content in files.items():
        if file == "tokenizer_config.json":
            content = {"tokenizer_class": "PreTrainedTokenizerFast", **content}
        (folder / file).write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())
    return folder


def renders(root):
    """(folder, case, messages, arguments, outcome)"""
    for name, files in FOLDERS.items():
        folder = write_folder(root, name, files)
        loaded = []

        def tokenizer():
            if not loaded:
                loaded.append(PreTrainedTokenizerFast.from_pretrained(str(folder)))
            return loaded[0]

        for (aname, arguments), cname in itertools.product(ARGUMENTS.items(), SOME):
            messages = c.CONVERSATIONS[cname]
            yield str(folder), name + ", " + cname + " / " + aname, messages, arguments, reference.outcome(
                lambda: tokenizer().apply_chat_template(json.loads(json.dumps(messages)), tokenize=False, **arguments))
