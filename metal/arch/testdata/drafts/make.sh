#!/bin/bash
# Records what mlx-vlm's draft head of Qwen3.5 computes on the tiny models of
# tinymodel.DraftCases. metal/arch computes the same and compares.
# usage: metal/arch/testdata/drafts/make.sh
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
cache=$PWD/.cache/goldens
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath HF_HUB_OFFLINE=1
python=$(bash test/oracle/goldens/mlx-vlm.sh)
rm -rf "$cache/drafts"
mkdir -p "$cache/drafts"
go run ./metal/tinymodel/cmd --out "$cache/drafts" --drafts >"$cache/drafts/cases.json"
"$python" -W ignore metal/arch/testdata/drafts/record.py "$cache/drafts/cases.json" metal/arch/testdata/drafts/mlx-vlm.json
rm -rf "$cache/drafts"
