"""What Hugging Face's own client gets from a hub, as JSON: the digest of each file of a snapshot, of one file at a
revision, and what it says where it may not read.

usage: client.py FOLDER   (HF_ENDPOINT says where the hub is)
"""
import hashlib
import json
import pathlib
import sys

import huggingface_hub as hub

folder = pathlib.Path(sys.argv[1])


def digests(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and ".cache" not in p.parts)
    base = path.parent if path.is_file() else path
    return {p.relative_to(base).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def refused(call):
    try:
        call()
    except hub.errors.HfHubHTTPError as e:
        return type(e).__name__
    return "nothing"


print(json.dumps({
    "version": hub.__version__,
    "commit": hub.HfApi().model_info("org/model").sha,
    "tree": sorted(e.path for e in hub.HfApi().list_repo_tree("org/model", recursive=True) if isinstance(e, hub.hf_api.RepoFile)),
    "snapshot": digests(pathlib.Path(hub.snapshot_download("org/model", local_dir=folder / "snapshot"))),
    "file": digests(pathlib.Path(hub.hf_hub_download("org/model", "sub/b.bin", revision="refs/pr/1", local_dir=folder / "file"))),
    "private": digests(pathlib.Path(hub.snapshot_download("org/private", token="secret-1", local_dir=folder / "private"))),
    "withoutToken": refused(lambda: hub.snapshot_download("org/private", token=False, local_dir=folder / "none")),
    "wrongToken": refused(lambda: hub.HfApi().model_info("org/private", token="secret-9")),
    "gatedGiven": digests(pathlib.Path(hub.hf_hub_download("org/gated", "sub/b.bin", token="secret-2", local_dir=folder / "gated"))),
    "gated": refused(lambda: hub.hf_hub_download("org/gated", "sub/b.bin", token=False, local_dir=folder / "none")),
    "noRevision": refused(lambda: hub.snapshot_download("org/model", revision="v9", local_dir=folder / "none")),
    "noFile": refused(lambda: hub.hf_hub_download("org/model", "none.bin", local_dir=folder / "none")),
}))
