#!/bin/sh
# usage: codex.sh start|resume PROMPT
set -eu
mkdir -p "$HOME/.codex"
cat >"$HOME/.codex/config.toml" <<EOF
model = "$MODEL"
model_provider = "metalfleet"

[model_providers.metalfleet]
name = "metalfleet"
base_url = "$BASE_URL/v1"
wire_api = "responses"
EOF
set -- "$1" --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$2"
case $1 in
start) shift && exec codex exec "$@" </dev/null ;;
resume) shift && exec codex exec resume --last "$@" </dev/null ;;
esac
