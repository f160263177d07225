#!/bin/sh
# usage: aider.sh start|resume PROMPT
set -eu
export LITELLM_LOCAL_MODEL_COST_MAP=True
cat >"$HOME/settings.yml" <<EOF
- name: openai/$MODEL
  edit_format: diff
  extra_params: {stream_options: {include_usage: true}}
EOF
[ "$1" = start ] || set -- "$1" "$2" --restore-chat-history
prompt=$2
shift 2
exec aider --model "openai/$MODEL" --model-settings-file "$HOME/settings.yml" --openai-api-base "$BASE_URL/v1" --openai-api-key none \
  --no-git --no-check-update --no-show-model-warnings --analytics-disable --yes-always --no-pretty \
  --test-cmd 'sh test.sh' --auto-test --message "$prompt" "$@" price.sh </dev/null
