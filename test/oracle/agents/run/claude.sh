#!/bin/sh
# usage: claude.sh start|resume PROMPT
set -eu
export ANTHROPIC_BASE_URL="$BASE_URL" ANTHROPIC_API_KEY=none ANTHROPIC_MODEL="$MODEL" ANTHROPIC_DEFAULT_HAIKU_MODEL="$MODEL"
set -- "$1" --allowedTools Bash,Edit,Read -p "$2"
case $1 in
start) shift && exec claude "$@" </dev/null ;;
resume) shift && exec claude --continue "$@" </dev/null ;;
esac
