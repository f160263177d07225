# llm knows a server by a file in its folder; a model that makes vectors it knows by OpenAI's name alone.
set -eu -o pipefail
LLM_USER_PATH=$(mktemp -d)
export LLM_USER_PATH
trap 'rm -rf "$LLM_USER_PATH"' EXIT
cat >"$LLM_USER_PATH/extra-openai-models.yaml" <<END
- model_id: fleet
  model_name: caller
  api_base: $BASE_URL
  supports_tools: true
END

echo "== a prompt, not streamed"
llm -m fleet --no-stream "Hello, who are you?"

echo "== a prompt, streamed"
llm -m fleet "Hello, who are you?"

echo "== the same conversation, continued"
llm -c "And now?"

echo "== a tool"
llm -m fleet --tools-debug --functions '
def get_weather(city: str) -> str:
    "How the weather is in a city."
    return "sunny in " + city
' "How is the weather in Paris?" 2>&1

echo "== vectors"
export OPENAI_BASE_URL=$BASE_URL OPENAI_API_KEY=none
llm embed -m text-embedding-3-small -c "hello" | python -c 'import json, sys; print(len(json.load(sys.stdin)), "numbers")'

echo "== similar texts"
llm embed words one -m text-embedding-3-small -c "hello"
llm embed words two -m text-embedding-3-small -c "the engine stops"
llm similar words -c "hello" -n 1 | python -c 'import json, sys; print(json.load(sys.stdin)["id"])'
