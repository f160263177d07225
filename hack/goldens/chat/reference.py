"""jinja2 set up as transformers does for chat templates: the oracle for
metal/chat/jinja."""

import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

NOW = datetime.datetime(2026, 3, 9, 7, 5, 2)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError("raised:" + str(message))


class Namespace(jinja2.utils.Namespace):
    """transformers refuses names that begin with an underscore."""

    def __init__(*args, **kwargs):
        attrs = dict(*args[1:], **kwargs)
        for name in attrs:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(args[0], attrs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore in a namespace: " + name)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    env.globals["namespace"] = Namespace
    return env


@functools.lru_cache(maxsize=8)
def compiled(env, source):
    return env.from_string(source)


def render(env, source, variables):
    """{"text": ...}, {"raised": message} or {"error": what}."""
    try:
        return {"text": compiled(env, source).render(**variables)}
    except jinja2.exceptions.TemplateError as e:
        if str(e).startswith("raised:"):
            return {"raised": str(e)[7:]}
        return {"error": type(e).__name__ + ": " + str(e)}
    except Exception as e:  # templates fail with any of Python's errors
        return {"error": type(e).__name__ + ": " + str(e)}
