package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestThePageIsWhatTheDecodersSay(t *testing.T) {
	if err := run(filepath.Join("..", ".."), false); err != nil {
		t.Error(err)
	}
}

func TestAPageThatSaysSomethingElseIsFound(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "docs", "api.md")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("no marks")
	if err := run(root, true); err == nil {
		t.Error("a page without marks is taken")
	}
	write("head\n" + begin + "old\n" + end + "tail\n")
	if err := run(root, true); err == nil {
		t.Error("a page without the rows' marks is taken")
	}
	old := "head\n" + beginRows + endRows + begin + "old\n" + end + "tail\n"
	write(old)
	if err := run(root, true); err != nil { // the documents too
		t.Fatal(err)
	}
	write(old)
	if err := run(root, false); err == nil || !strings.Contains(err.Error(), pagePath+" is not") {
		t.Errorf("an old page is taken: %v", err)
	}
	if err := run(root, true); err != nil {
		t.Fatal(err)
	}
	if err := run(root, false); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(got)
	for _, want := range []string{"head\n", "tail\n", "| `best_of` | refused | The parameter 'best_of' is not supported.", "| `temperature` | yes | |", "| `cache_control` | yes | taken; nothing follows of it |",
		"| `parallel_tool_calls` | yes | taken; nothing follows of it |", "| `input` | yes | |",
		"| request | what must hold | openai-python | openai-javascript | openai-go |", "| not sent: the client in Go has no such helper |", "without `stream` is refused | refused | refused | refused |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page misses %q", want)
		}
	}
}
