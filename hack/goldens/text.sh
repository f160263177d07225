#!/bin/bash
# Compares metal/tokenizer with Hugging Face's tokenizers over many texts on a
# real vocabulary, and metal/chat/jinja with jinja2 as transformers sets it up
# over real chat templates, which come inside the source package of
# llama-cpp-python, and over random ones. Everything fetched stays under .cache,
# which git ignores.
# usage: hack/goldens/text.sh [number of texts, 50000]
set -eu -o pipefail
cd "$(dirname "$0")/../.."
count=${1:-50000}
cache=$PWD/.cache/oracles
source=llama_cpp_python-0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
templates=$cache/$source/vendor/llama.cpp/models/templates
python=$cache/venv/bin/python
export PYTHONDONTWRITEBYTECODE=1

mkdir -p "$cache"
if [ ! -f "$cache/installed" ]; then
  python3 -m venv "$cache/venv"
  "$python" -m pip install -q tokenizers==0.23.3 jinja2==3.1.6 gguf==0.19.0 scikit-build-core==1.1.2
  touch "$cache/installed"
fi
if [ ! -f "$cache/installed-transformers" ]; then # sets up jinja2 for the templates
  "$python" -m pip install -q transformers==5.23.0
  touch "$cache/installed-transformers"
fi
if [ ! -d "$templates" ]; then
  "$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$cache" llama-cpp-python==0.3.36
  "$python" - "$cache/$source.tar.gz" "$sha256" <<'PY'
import hashlib, sys
if hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2]:
    sys.exit("text: " + sys.argv[1] + " has another SHA-256 than expected")
PY
  tar -xzf "$cache/$source.tar.gz" -C "$cache" "$source/vendor/llama.cpp/models/templates"
fi
model=$(bash hack/models/fetch.sh smollm2 | tail -n 1)

"$python" hack/goldens/chat/compare.py "$templates" >"$cache/renders.jsonl"
CGO_ENABLED=0 go run -trimpath ./hack/goldens/chat "$cache/renders.jsonl"
"$python" hack/goldens/tokenizer/compare.py "$model" "$count" >"$cache/texts.jsonl"
CGO_ENABLED=0 go run -trimpath ./hack/goldens/tokenizer "$model" "$cache/texts.jsonl"
