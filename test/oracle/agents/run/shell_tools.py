"""The tools of an agent that works in the current folder."""

import subprocess


def run_command(command: str) -> str:
    """Run a shell command and return what it prints."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    return done.stdout + done.stderr


def read_file(path: str) -> str:
    """Read a file."""
    with open(path) as f:
        return f.read()


def edit_file(path: str, old_string: str, new_string: str) -> str:
    """Replace a text in a file."""
    text = read_file(path)
    with open(path, "w") as f:
        f.write(text.replace(old_string, new_string))
    return "done"
