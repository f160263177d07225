package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Program is one of others.
type Program struct {
	Name string
	// Package on PyPI whose version the page shows, and Licence of it.
	Package, Licence string
	// Pins is the file of what is installed, without its ending, and Script what
	// is run with it.
	Pins, Script string
	// Told is what a user has to tell it.
	Told string
	// Steps of the script, all of them.
	Steps []string
}

// Programs are those that are run, in the page's order.
func Programs() []Program {
	return []Program{
		{Name: "llm", Package: "llm", Licence: "Apache-2.0", Pins: "llm", Script: "llm.sh",
			Told: "Models of a server go into `extra-openai-models.yaml` in its folder (`llm logs path` shows where that is), each with `api_base`; " +
				"`supports_tools` lets it send tools. Models that make vectors it knows by OpenAI's names alone: give the deployment " +
				"such a name in `spec.servedNames`, and set `OPENAI_BASE_URL`.",
			Steps: []string{"a prompt, not streamed", "a prompt, streamed", "the same conversation, continued", "a tool", "vectors", "similar texts"}},
		{Name: "LlamaIndex", Package: "llama-index-core", Licence: "MIT", Pins: "llamaindex", Script: "llamaindex.py",
			Told: "Use `OpenAILike`, `OpenAILikeEmbedding` and `JinaRerank`, with the URL in `api_base`, and `base_url` for the last. " +
				"Say `is_chat_model=True` and how long the context is: it asks the server for neither.",
			Steps: []string{"chat", "chat, streamed", "vectors of an index", "what is found", "what rerank leaves of it", "the answer", "the answer, streamed"}},
		{Name: "LiteLLM, the library", Package: "litellm", Licence: "MIT", Pins: "litellm", Script: "litellm_library.py",
			Told: "`hosted_vllm/` before a model's name is LiteLLM's word for a server that speaks OpenAI's API and reranks; `anthropic/` " +
				"sends Anthropic's messages, to the URL without `/v1`.",
			Steps: []string{"completion", "completion, streamed", "a tool", "a tool, streamed", "embedding", "rerank", "Anthropic's messages", "an error"}},
		{Name: "LiteLLM, the proxy", Package: "litellm", Licence: "MIT", Pins: "litellm", Script: "litellm_proxy.py",
			Told: "List each model in `model_list`, and its kind in `model_info.mode`. Without `LITELLM_LOCAL_MODEL_COST_MAP=True` it fetches a list " +
				"of prices when it starts. `litellm[proxy]` brings `litellm-enterprise`, under a licence of its own; it was left out here.",
			Steps: []string{"models", "chat", "chat, streamed", "a tool", "vectors", "rerank", "an error"}},
		{Name: "Pydantic AI", Package: "pydantic-ai-slim", Licence: "MIT", Pins: "pydanticai", Script: "pydanticai.py",
			Told: "The URL goes into `OpenAIProvider`, and any key where the gateway asks for none. It asks by itself that arguments " +
				"are held to a tool's schema (`strict`); for a model of which that is refused, a profile with " +
				"`openai_supports_strict_tool_definition=False` keeps it from asking.",
			Steps: []string{"an agent calls its tool", "its requests", "streamed", "a conversation goes on", "an agent without tools"}},
	}
}

const head = `# Programs that work with it

Programs of others, unmodified and as they are on PyPI, that speak to a gateway and straight to an agent. ` + "`make test-programs`" + `
installs each with everything that it needs at fixed versions (` + "`test/oracle/programs/pins`" + `), runs the script that stands here at both, and
fails where a step is missing, the two differ, or this page shows something else than what was said.

` + "`$BASE_URL`" + ` is ` + "`http://HOST:PORT/v1`" + ` of the gateway. The models are tiny: ` + "`embedder` and `reranker`" + ` are random, and ` + "`caller`" + ` is a
Llama whose weights make it say a script: it calls ` + "`get_weather`" + ` where a conversation has tools, and tells whether the tool said
"sunny". All else, from template and tokens to the call's parser, is what every model goes through. Where API keys are
asked, put one where ` + "`none`" + ` stands; [api.md](api.md) says which fields are honoured and which are refused.
`

// Page shows what each program was told and said.
func Page(root string, said map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(head)
	for _, p := range Programs() {
		version, err := versionOf(root, p)
		if err != nil {
			return nil, err
		}
		script, err := os.ReadFile(filepath.Join(root, "hack", "programs", "run", p.Script))
		if err != nil {
			return nil, err
		}
		kind := strings.TrimPrefix(filepath.Ext(p.Script), ".")
		fmt.Fprintf(&b, "\n## %s\n\n`%s` %s, %s. %s\n\n```%s\n%s```\n\nIt says:\n\n```text\n%s```\n", p.Name, p.Package, version, p.Licence, p.Told, kind, script, said[p.Name])
	}
	return b.Bytes(), nil
}

// versionOf a program, as it is pinned.
func versionOf(root string, p Program) (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, "hack", "programs", "pins", p.Pins+".txt"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), p.Package+"=="); ok {
			v, _, _ = strings.Cut(v, " ") // hashes follow
			return v, nil
		}
	}
	return "", fmt.Errorf("%s is not pinned in %s.txt", p.Package, p.Pins)
}
