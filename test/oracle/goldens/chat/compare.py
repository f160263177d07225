"""Renders templates under transformers' own set-up of jinja2 and writes one
JSON object a line; main.go compares. There are four groups:

real      every template of a folder (*.jinja) with every conversation. The
          templates are not ours: they stay outside of the repository. Those
          inside the source package of llama-cpp-python are a good set.
snippets  small templates, one feature each
random    templates from a grammar, by number and seed
folders   model folders, written to FOLDERS, whose templates and special
          tokens transformers' tokenizers read themselves

    python3 -m venv V && V/bin/pip install transformers==5.23.0 jinja2==3.1.6
    V/bin/python test/oracle/goldens/chat/compare.py TEMPLATES FOLDERS [RANDOM [SEED]] > renders.jsonl
    go run ./test/oracle/goldens/chat renders.jsonl
"""

import json
import pathlib
import sys

import conversations
import folders
import random_templates
import reference
import snippets


def write(**line):
    print(json.dumps(line))


def main(folder, models, count=30_000, seed=1):
    inputs = list(conversations.all_inputs())
    for name, variables in inputs:
        write(define=name, variables=variables)
    write(define="snippets", variables=snippets.V)
    paths = sorted(pathlib.Path(folder).glob("*.jinja"))
    if not paths:
        sys.exit("compare: no templates in " + folder)
    for path in paths:
        write(group="real", template=path.stem, source=path.read_text(encoding="utf-8"))
        for name, variables in inputs:
            write(use=name, want=reference.render(path.read_text(encoding="utf-8"), variables))
    for source, variables in snippets.all_templates():
        write(group="snippets", template="snippets", source=source)
        write(use="snippets", want=reference.render(source, variables))
    for path, name, messages, arguments, want in folders.renders(models):
        write(group="folders", folder=path, case=name, messages=messages, arguments=arguments, want=want)
    for source in random_templates.templates(int(count), int(seed)):
        write(group="random", template="random", source=source)
        write(use="snippets", want=reference.render(source, snippets.V))


main(*sys.argv[1:])
