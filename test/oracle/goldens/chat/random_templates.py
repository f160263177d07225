"""Random templates from a grammar, the same ones for the same seed: most are
no templates anybody would write, and that is the point. Expressions have a
kind, so that most of them make sense; a few are of any kind."""

import random

import jinja2.filters
import jinja2.tests

# Variables and literals of each kind; see V in snippets.py.
ATOMS = {
    "text": ["s", "e", "q", "ml", "html", "words[1]", "ls[0]", "m[0].c", "''", "'a'", "'b'", "'Ab c'", "'-'", "' '", "'x,y'", "'\\n'", "'é'", "'%s'", "'%d|%5.2f'", "'{}'", "'{0!r:>8}'", "'<b>'", "'r'", "'c'", "'n.k'", "'3'", "'2.5'",
             "'ǆ ŉ ß'", "'ΑΣ Σ'", "'\\t a\\tb '", "'don\\'t'", "'%(k)s'", "'{k}'", "'hello-wide world, again and again'"],
    "number": ["n", "f", "neg", "big", "t", "0", "1", "2", "3", "7", "10", "-1", "2.5", "0.1", "1e3", "-0.5", "1e16", "0x1F", "true", "false", "l[0]"],
    "list": ["l", "ls", "m", "words", "pairs", "[]", "[1, 2]", "['b', 'A']", "[none, 0, '']", "(1, 'a')", "()", "range(3)", "range(7, 0, -2)", "d.items()", "d.keys()", "d.values()", "[[1, 2], [3]]", "[2, 2.0, true, 1]", "s"],
    "dict": ["d", "d.a", "m[0]", "m[1]", "{}", "{'a': 1}", "{'b': [1], 'a': none}", "{1: 'x', 'k': 'y'}", "m[0].n"],
    "odd": ["x", "none", "nowhere", "d.zz", "loop", "ns", "range", "i", "a", "mm"],
}
KINDS = ["text", "text", "text", "number", "number", "list", "list", "dict", "odd"]
# Filters with arguments by the kind they take; {t}, {n}, {l}, {d} and {o} stand for any expression of a kind.
FILTERS = {
    "text": ["upper", "lower", "title", "capitalize", "trim", "trim({t})", "length", "list", "reverse", "first", "last", "center({n})", "center", "escape", "e", "forceescape", "safe", "string", "striptags", "urlencode", "wordcount", "int", "int({n})",
             "int(0, 16)", "float", "float({n})", "replace({t}, {t})", "replace({t}, {t}, {n})", "indent", "indent({n})", "indent({t}, true)", "indent(2, blank=true)", "truncate({n})", "truncate(5, true)", "truncate(9, false, {t}, 0)", "truncate(6, end='')",
             "wordwrap({n})", "wordwrap(7)", "wordwrap(4, false)", "wordwrap(5, true, {t})", "wordwrap(6, break_on_hyphens=false)", "format({o})", "format({t}, {n})", "format(k={o})", "default({o})", "default({o}, true)", "d", "tojson", "pprint", "join({t})", "sort",
             "unique | list", "batch(3) | list", "slice(2) | list", "map('upper') | list", "select('in', {t}) | list", "count", "filesizeformat", "attr('upper')", "max", "min", "sum"],
    "number": ["abs", "round", "round({n})", "round(1)", "round(2, 'ceil')", "round(method='floor')", "int", "float", "string", "filesizeformat", "filesizeformat(true)", "tojson", "default({o}, true)", "format", "urlencode", "e", "pprint", "list", "length", "upper"],
    "list": ["length", "first", "last", "join", "join({t})", "join({t}, attribute='c')", "list", "reverse | list", "sort", "sort(true)", "sort(case_sensitive=true)", "sort(attribute='c')", "sort(attribute='r,c')", "sort(false, true, 0)", "unique | list", "unique(true) | list",
             "unique(attribute='r') | list", "min", "max", "max(attribute='c')", "min(true)", "sum", "sum(start={n})", "sum('n.k')", "sum(start=[])", "map(attribute='c') | list", "map(attribute='n.k', default={o}) | list", "map('upper') | list", "map('length') | list",
             "map('default', {o}) | list", "map('tojson') | join(',')", "select | list", "select('odd') | list", "select({t2}) | list", "reject('none') | list", "reject('in', {l}) | list", "selectattr('r', 'eq', 'u') | list", "selectattr('n') | list", "rejectattr('n') | list",
             "selectattr('n.k', 'defined') | list", "groupby('r') | list", "groupby('r') | map(attribute='grouper') | list", "groupby('n.k', default={n}) | list", "groupby(0)", "groupby('c', case_sensitive=true)", "batch({n}) | list", "batch(2, {o}) | list", "slice(3) | list",
             "slice(2, {o}) | list", "tojson", "tojson(indent={n})", "tojson(indent={t})", "tojson(separators=({t}, {t}))", "pprint", "string", "dictsort", "items | list", "urlencode", "first | default({o})", "count", "random_not_there", "map({t2}) | list", "replace({t}, {t})", "wordcount"],
    "dict": ["length", "list", "items | list", "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "dictsort(false, 'key', true)", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(true, 1)", "tojson(ensure_ascii=true, separators=[',', ':'])",
             "xmlattr", "xmlattr(false)", "urlencode", "first", "last", "join", "sort", "max", "pprint", "string", "map('upper') | list", "select | list", "attr('items')", "attr('b')", "default({o})", "reverse | list", "batch(1) | list", "groupby(0) | list", "unique | list"],
    "odd": ["default({o})", "default({o}, true)", "d", "length", "list", "string", "upper", "join", "first", "last", "int", "float", "tojson", "items | list", "map('upper') | list", "select | list", "e", "pprint", "abs", "round", "sort", "unique | list", "wordcount", "trim", "attr('b')", "sum", "indent"],
}
METHODS = {
    "text": ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip({t})", "rstrip()", "strip({t})", "split()", "split({t})", "split({t}, {n})", "rsplit({t}, 1)", "rsplit(none, 1)", "splitlines()", "splitlines(true)", "startswith({t})",
             "endswith(('d', 'x'))", "startswith({t}, {n})", "find({t})", "rfind({t})", "index({t})", "rindex({t})", "count({t})", "find({t}, {n})", "count({t}, {n}, {n})", "replace({t}, {t})", "replace({t}, {t}, {n})", "join({l})", "isdigit()", "isupper()", "islower()", "istitle()",
             "isalpha()", "isalnum()", "isspace()", "isnumeric()", "isdecimal()", "isprintable()", "isidentifier()", "isascii()", "zfill({n})", "center({n})", "center(9, {t})", "ljust(9, '.')", "rjust({n})", "partition({t})", "rpartition({t})", "format({o}, {o})", "format({t}, k={n})",
             "format_map({d})", "expandtabs(4)", "removeprefix({t})", "removesuffix({t})", "encode()", "nope()", "__len__()"],
    "number": ["is_integer()", "bit_length()", "real", "imag", "nope", "__class__", "upper()"],
    "list": ["index({n})", "count({n})", "copy()", "append({o})", "pop()", "sort()", "insert(0, 1)", "items()", "nope", "index({t}, 1)", "grouper"],
    "dict": ["items() | list", "keys() | list", "values() | list", "get({t})", "get({t}, {o})", "copy()", "update({})", "pop('a')", "setdefault('a', 1)", "clear()", "b", "a", "items", "update", "zz", "k", "C", "__class__", "fromkeys('ab')", "n.k"],
    "odd": ["index", "b", "k", "nope", "upper()", "get('a')", "items()", "__class__", "length", "name", "arguments"],
}
OPERATORS = {
    "text": ["{t} + {t}", "{t} * {n}", "{n} * {t}", "{t} % {o}", "{t} % ({o}, {o})", "{t} % {d}", "{t} ~ {o}", "{t} in {t}", "{t} not in {o}", "{t} < {t}", "{t} == {t}", "{t} != {o}", "{t} in {d}", "{t} in {l}"],
    "number": ["{n} + {n}", "{n} - {n}", "{n} * {n}", "{n} / {n}", "{n} // {n}", "{n} % {n}", "{n} ** 2", "2 ** l[1]", "-{n}", "+{n}", "{n} < {n}", "{n} >= {n}", "{n} == {n}", "{n} < {n} < {n}", "{n} in {l}", "{n} ~ {n}", "2 ** 3 ** 2", "-{n} ** 2", "{n} - {n} - {n}"],
    "list": ["{l} + {l}", "{l} * {n}", "{l} == {l}", "{l} < {l}", "{o} in {l}", "{l} != {o}", "{o} not in {l}"],
    "dict": ["{d} == {d}", "{t} in {d}", "dict({d}, k={o})", "{d} != {o}", "{{'k': {o}, {t}: {o}}}"],
    "odd": ["{o} == {o}", "{o} != {o}", "not {o}", "{o} and {o}", "{o} or {o}", "{o} is none", "{o} is sameas {o}", "{o} ~ {o}", "[{o}, {o}]", "({o}, {o})", "{{{o}: {o}}}", "namespace(k={o}).k", "dict(k={o})", "dict([({o}, {o})])", "{o} + {o}", "{o} < {o}", "{o} if {o} else {o}", "{o} if {o}", "dict.fromkeys({l}, {o})"],
}
TESTS = [t for t in sorted(jinja2.tests.TESTS) if t.isalpha()]
NEEDY = ["divisibleby", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in", "sameas"]
OPTIONS = ["attribute", "default", "reverse", "case_sensitive", "by", "width", "first", "blank", "indent", "sort_keys", "boolean", "start", "fill_with", "end", "killwords", "precision", "method", "base", "binary", "zz"]


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.sane = self.chance(0.7)  # keeps to the kinds that filters and methods take

    def pick(self, options):
        return self.r.choice(options)

    def chance(self, p):
        return self.r.random() < p

    def fill(self, pattern, depth):
        for mark, kind in (("{t}", "text"), ("{n}", "number"), ("{l}", "list"), ("{d}", "dict")):
            while mark in pattern:
                pattern = pattern.replace(mark, self.expression(depth, kind), 1)
        while "{o}" in pattern:
            pattern = pattern.replace("{o}", self.expression(depth), 1)
        while "{t2}" in pattern:
            pattern = pattern.replace("{t2}", "'" + self.pick(TESTS + sorted(jinja2.filters.FILTERS)) + "'", 1)
        return pattern

    def expression(self, depth, kind=None):
        kind = kind or self.pick(KINDS[:-1] if self.sane else KINDS)
        if depth <= 0 or self.chance(0.2):
            return self.pick(ATOMS[kind])
        of = kind if self.sane or self.chance(0.9) else self.pick(KINDS)
        make = self.pick(["filter", "filter", "filter", "method", "method", "operator", "operator", "test", "member", "slice", "condition"])
        if make == "filter":
            chain = "".join(" | " + self.fill(self.pick(FILTERS[of]), depth - 2) for _ in range(self.pick([1, 1, 1, 2])))
            return "(" + self.expression(depth - 1, kind) + chain + ")"
        if make == "method":
            return self.wrapped(self.expression(depth - 1, kind)) + "." + self.fill(self.pick(METHODS[of]), depth - 2)
        if make == "operator":
            return "(" + self.fill(self.pick(OPERATORS[of]).replace("{{", "{").replace("}}", "}"), depth - 1) + ")"
        if make == "test":
            test = self.pick(TESTS)
            args = ""
            if test in NEEDY or self.chance(0.05):
                args = self.pick([" ", "("]) + self.expression(0)
                args += ")" if args[0] == "(" else ""
            return f"({self.expression(depth - 1, kind)} is {self.pick(['', '', 'not '])}{test}{args})"
        if make == "member":
            return self.wrapped(self.expression(depth - 1, self.pick(["list", "dict", "text"]))) + self.pick([".b", ".a", ".a.k", ".r", "['b']", "[0]", "[-1]", "[1]", "['n']", ".zz", "[" + self.expression(0) + "]", ".0", "[9]", "[1:]", "[0, 1]"])
        if make == "slice":
            bound = lambda: self.pick(["", "", "0", "1", "2", "-1", "-2", "5", "99", "none", "big"])
            return self.wrapped(self.expression(depth - 1, self.pick(["text", "list"]))) + "[" + bound() + ":" + bound() + self.pick(["", "", ":" + self.pick(["", "1", "2", "-1", "-2", "3"])]) + "]"
        return f"({self.expression(depth - 1, kind)} if {self.expression(depth - 1)} else {self.expression(depth - 1, kind)})"

    def wrapped(self, e):
        return "(" + e + ")" if e[0] in "-+'0123456789" else e

    def call(self, depth):
        args = [self.expression(depth) for _ in range(self.pick([0, 0, 1, 1, 2, 3]))]
        if self.chance(0.2):
            args.append(self.pick(["a", "b", "s", "i", "zz"]) + "=" + self.expression(0))
        if self.chance(0.05):
            args.append(self.pick(["*l", "*[1]", "**d", "**{'a': 1}"]))
        return ", ".join(args)

    def odd_filter(self):
        args = ", ".join([self.expression(0) for _ in range(self.pick([0, 1, 2]))] + ([self.pick(OPTIONS) + "=" + self.expression(0)] if self.chance(0.4) else []))
        return self.pick(sorted(jinja2.filters.FILTERS)) + ("(" + args + ")" if args else "")

    def statement(self, depth):
        kind = self.pick(["text", "text", "out", "out", "out", "out", "set", "set", "if", "if", "for", "for", "for", "macro", "call", "filter", "with", "setblock", "generation", "control", "ns", "nsset", "recursive", "print", "raw", "comment"])
        e = lambda d=2, k=None: self.expression(d, k)
        body = lambda: self.body(depth - 1)
        dash = lambda: self.pick(["", "", "", "", "-", "+"])
        tag = lambda text: "{%" + dash() + " " + text + " " + dash() + "%}"
        if depth <= 0 and kind in ("if", "for", "macro", "call", "filter", "with", "setblock", "generation", "recursive"):
            kind = "out"
        if kind == "text":
            return self.pick(["x", " y ", "\n", "\n  ", "é", "{", "a\n\n", "\t", "} %"])
        if kind == "comment":
            return "{#" + dash() + " c " + dash() + "#}"
        if kind == "raw":
            return "{%" + self.pick(["", "-"]) + " raw %} {{ x }}\n{% endraw " + dash() + "%}"
        if kind == "print":
            return "{% print " + e() + ", " + e(1) + " %}"
        if kind == "out":
            return "{{" + self.pick(["", "", "-"]) + " " + self.pick([e(), e(), e(), "loop.index", "loop.last", "loop.length", "loop.revindex", "loop.first", "loop.nextitem", "loop.previtem", "loop.cycle('x', 'y')", "loop.changed(i)", "loop.depth", "a", "b", "i", "ns.k", "mm(1)", "caller()", "varargs", "kwargs"]) + " " + self.pick(["", "", "-"]) + "}}"
        if kind == "set":
            return tag("set " + self.pick(["a", "b", "i", "s", "n", "l", "a, b", "(a, b)", "loop"]) + " = " + self.pick([e(), e(), e() + ", " + e(1)]))
        if kind == "ns":
            return "{% set ns = namespace(k=" + e(1) + ") %}"
        if kind == "nsset":
            return "{% set ns.k = " + self.pick([e(1), "ns.k ~ i", "ns.k + 1", "i"]) + " %}"
        if kind == "if":
            other = tag("elif " + e()) + body() if self.chance(0.3) else ""
            other += tag("else") + body() if self.chance(0.5) else ""
            return tag("if " + e()) + body() + other + tag("endif")
        if kind == "for":
            cond = " if " + self.pick([e(1), "i", "ns.k", "not ns.k", "loop.first"]) if self.chance(0.3) else ""
            other = tag("else") + body() if self.chance(0.3) else ""
            return tag("for " + self.pick(["i", "i", "i", "i", "a", "k, v", "s", "(a, b)", "a, b"]) + " in " + e(1, "list") + cond) + body() + other + tag("endfor")
        if kind == "recursive":
            return "{% for i in [[1, [2, [3]]], 4, 's'] recursive %}" + self.pick(["{{ loop.depth }}", "{{ loop.index }}/{{ loop.length }}", "{{ i }}", ""]) + "{{ loop(i) if i is sequence and i is not string else i }}" + body() + "{% endfor %}"
        if kind == "macro":
            return "{% macro mm(" + self.pick(["", "a", "a, b=2", "a=1, b=a", "i, s=n", "a=b, b=1", "caller=1", "kwargs"]) + ") %}" + body() + "{% endmacro %}{{ mm(" + self.call(1) + ") }}"
        if kind == "call":
            return "{% macro mc(a=1) %}" + self.pick(["{{ caller() }}", "{{ caller(a, 2) }}", "{{ caller(1) }}{{ caller(2) }}", body()]) + "{% endmacro %}{% call" + self.pick(["", "(i)", "(i, a=3)"]) + " mc(" + self.pick(["", "2", "a=4"]) + ") %}" + body() + "{% endcall %}"
        if kind == "filter":
            return "{% filter " + self.pick(["upper", "trim", "indent(2)", "replace('a', 'b')", "title | trim", "string", self.pick(FILTERS["text"]).split("{")[0].split("(")[0], self.odd_filter()]) + " %}" + body() + "{% endfilter %}"
        if kind == "with":
            return "{% with " + self.pick(["a = 1", "a = " + e(1), "a = n, b = a", "(a, b) = (1, 2)", ""]) + " %}" + body() + "{% endwith %}"
        if kind == "setblock":
            return tag("set " + self.pick(["a", "b", "s", "ns.k"]) + self.pick(["", "", " | upper", " | trim | length"])) + body() + tag("endset")
        if kind == "generation":
            return tag("generation") + body() + tag("endgeneration")
        return "{% " + self.pick(["break", "continue"]) + " %}"

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.pick([1, 1, 2, 3])))

    def template(self):
        kind = self.r.random()
        if kind < 0.1:
            return "{{ " + self.expression(1) + " | " + self.odd_filter() + " }}"
        if kind < 0.6:
            return "{{ " + self.expression(self.pick([1, 2, 2, 3])) + " }}"
        return "{% set ns = namespace(k=0) %}" + self.body(self.pick([1, 2, 3]))


def templates(count, seed):
    for i in range(count):
        yield Writer(seed * 1_000_003 + i).template()
