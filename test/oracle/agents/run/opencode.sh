#!/bin/sh
# usage: opencode.sh start|resume PROMPT; PACKAGE is the provider's
set -eu
mkdir -p "$HOME/.config/opencode"
cat >"$HOME/.config/opencode/opencode.json" <<EOF
{
  "provider": {
    "metalfleet": {
      "npm": "$PACKAGE",
      "options": {"baseURL": "$BASE_URL/v1", "apiKey": "none"},
      "models": {"$MODEL": {"limit": {"context": 100000, "output": 50000}}}
    }
  },
  "model": "metalfleet/$MODEL",
  "autoupdate": false
}
EOF
case $1 in
start) exec opencode run --auto "$2" </dev/null ;;
resume) exec opencode run --auto --continue "$2" </dev/null ;;
esac
