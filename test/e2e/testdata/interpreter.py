"""Prints, as a JSON object of inside to outside paths, what this interpreter needs to run elsewhere: itself, its library
and the shared objects that they load. usage: interpreter.py"""
import json
import os
import re
import subprocess
import sys
import sysconfig


def objects(path):
    """Shared objects that the loader would load for a program or an extension."""
    out = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(?:=> |^\s*)(/\S+)", out, re.MULTILINE)


program = os.path.realpath(sys.executable)
library = sysconfig.get_paths()["stdlib"]
files = {"/python": program, library: library}
loaded = [program]
packages = sysconfig.get_paths()["platlib"]
for root in os.path.join(library, "lib-dynload"), packages:
    for folder, _, names in os.walk(root):
        loaded += [os.path.join(folder, n) for n in names if n.endswith(".so") and "tkinter" not in n]
for path in loaded:
    for name in objects(path):
        if not os.path.realpath(name).startswith(packages):  # a wheel has its own objects in its packages
            files[name] = os.path.realpath(name)
print(json.dumps({"home": sys.base_prefix, "files": files}))
