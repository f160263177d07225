"""The oracle for metal/chat: the environment that transformers itself sets up
for chat templates, with the clock stopped."""

import copy
import datetime
import functools
import os
import signal

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jinja2  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

NOW = datetime.datetime(2026, 3, 9, 7, 5, 2)


class Clock:
    @staticmethod
    def now():
        return NOW


chat_template_utils.datetime = Clock


@functools.lru_cache(maxsize=1)
def environment():
    return chat_template_utils._compile_jinja_template("").environment


@functools.lru_cache(maxsize=8)
def compiled(source):
    return environment().from_string(source)


def give_up(*_):
    raise TimeoutError("the reference does not end")


signal.signal(signal.SIGALRM, give_up)


def outcome(render):
    """{"text": ...}, {"raised": message} or {"error": what} of a call."""
    signal.setitimer(signal.ITIMER_REAL, 5)
    try:
        text = render()
        signal.setitimer(signal.ITIMER_REAL, 0)
        text.encode()  # half a surrogate pair is no text
        return {"text": text}
    except jinja2.exceptions.TemplateError as e:
        # raise_exception makes exactly this class, the library its subclasses.
        if type(e) is jinja2.exceptions.TemplateError:
            return {"raised": str(e.message)}
        return {"error": type(e).__name__ + ": " + str(e)}
    except Exception as e:  # templates fail with any of Python's errors
        return {"error": type(e).__name__ + ": " + str(e)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def render(source, variables):
    # A copy: some filters change a list in the sandbox after all (indent).
    return outcome(lambda: compiled(source).render(**copy.deepcopy(variables)))
