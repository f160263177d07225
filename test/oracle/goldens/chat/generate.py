"""Writes metal/chat/jinja/testdata/golden.json: what jinja2 renders for our
own snippets, for some random templates, and for templates in the style of four
families.

    python3 -m venv V && V/bin/pip install transformers==5.23.0 jinja2==3.1.6
    V/bin/python test/oracle/goldens/chat/generate.py metal/chat/jinja/testdata/golden.json
"""

import json
import re
import sys

import conversations
import random_templates
import reference
import snippets


# Filters that metal/chat/jinja refuses: no chat template uses them.
REFUSED = re.compile(r"""(\|\s*|filter |map\(["'])(batch|center|filesizeformat|forceescape|groupby|pprint|slice|striptags"""
                     r"|truncate|urlencode|wordcount|wordwrap|xmlattr)\b")


def main(path):
    rows = [{"template": t, "want": reference.render(t, v)} for t, v in snippets.all_templates() if not REFUSED.search(t)]
    for t in random_templates.templates(700, 3):
        want = reference.render(t, snippets.V)
        if " at 0x" not in want.get("text", "") and not any(word in t for word in ("encode()", "urlize", "attr('upper')")) and not REFUSED.search(t):
            rows.append({"template": t, "want": want})
    styles = []
    for name, variables in conversations.golden_inputs():
        styles.append({"name": name, "variables": variables,
                       "want": {s: reference.render(source, variables) for s, source in snippets.STYLES.items()}})
    # Python's words for an error are not compared.
    for want in [r["want"] for r in rows] + [w for s in styles for w in s["want"].values()]:
        if "error" in want:
            want["error"] = want["error"].split(":")[0]
    dump = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"variables":' + dump(snippets.V) + ',\n"snippets":[\n' + ",\n".join(map(dump, rows)))
        f.write('\n],\n"styles":' + dump(snippets.STYLES) + ',\n"conversations":[\n' + ",\n".join(map(dump, styles)) + "\n]}\n")


main(sys.argv[1])
