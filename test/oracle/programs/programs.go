package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Program is one of others.
type Program struct {
	Name string
	// Package on PyPI, which has to be pinned.
	Package string
	// Pins is the file of what is installed, without its ending, and Script what
	// is run with it.
	Pins, Script string
	// Steps of the script, all of them.
	Steps []string
}

// Programs are those that are run; docs/how-to/serve.md shows users how to
// configure each.
func Programs() []Program {
	return []Program{
		{Name: "llm", Package: "llm", Pins: "llm", Script: "llm.sh",
			Steps: []string{"a prompt, not streamed", "a prompt, streamed", "the same conversation, continued", "a tool", "vectors", "similar texts"}},
		{Name: "LlamaIndex", Package: "llama-index-core", Pins: "llamaindex", Script: "llamaindex.py",
			Steps: []string{"chat", "chat, streamed", "vectors of an index", "what is found", "what rerank leaves of it", "the answer", "the answer, streamed"}},
		{Name: "LiteLLM, the library", Package: "litellm", Pins: "litellm", Script: "litellm_library.py",
			Steps: []string{"completion", "completion, streamed", "a tool", "a tool, streamed", "embedding", "rerank", "Anthropic's messages", "an error"}},
		{Name: "LiteLLM, the proxy", Package: "litellm", Pins: "litellm", Script: "litellm_proxy.py",
			Steps: []string{"models", "chat", "chat, streamed", "a tool", "vectors", "rerank", "an error"}},
		{Name: "Pydantic AI", Package: "pydantic-ai-slim", Pins: "pydanticai", Script: "pydanticai.py",
			Steps: []string{"an agent calls its tool", "its requests", "streamed", "the next turn", "an agent without tools"}},
	}
}

// saidPath is the file with what a program is known to say.
func saidPath(root string, p Program) string {
	name := strings.TrimSuffix(p.Script, filepath.Ext(p.Script)) + ".txt"
	return filepath.Join(root, "test", "oracle", "programs", "said", name)
}

// versionOf a program, as it is pinned.
func versionOf(root string, p Program) (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, "test", "oracle", "programs", "pins", p.Pins+".txt"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), p.Package+"=="); ok {
			return v, nil
		}
	}
	return "", fmt.Errorf("%s is not pinned in %s.txt", p.Package, p.Pins)
}
