"""Renders every template of a folder (*.jinja) with many conversations under
jinja2 and writes one JSON object a line; main.go compares. The templates are
not ours: they stay outside of the repository. Those inside the source package
of llama-cpp-python (vendor/llama.cpp/models/templates) are a good set.

    python3 -m venv V && V/bin/pip install jinja2==3.1.6
    V/bin/python hack/goldens/chat/compare.py TEMPLATES > renders.jsonl
    go run ./hack/goldens/chat renders.jsonl
"""

import json
import pathlib
import sys

import conversations
import reference


def main(folder):
    env = reference.environment()
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        print(json.dumps({"template": path.stem, "source": source}))
        for name, variables in conversations.all_inputs():
            print(json.dumps({"case": name, "variables": variables, "want": reference.render(env, source, variables)}))


main(sys.argv[1])
