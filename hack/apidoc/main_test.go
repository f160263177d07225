//go:build !race

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestThePageMatchesTheDecoders(t *testing.T) {
	if err := run(filepath.Join("..", ".."), false); err != nil {
		t.Error(err)
	}
}

func TestAnOutdatedPageIsFound(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, filepath.FromSlash(pagePath))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("no marks")
	if err := run(root, true); err == nil {
		t.Error("a page without marks is accepted")
	}
	old := "head\n" + begin + "old\n" + end + "tail\n"
	write(old)
	if err := run(root, true); err != nil { // the documents too
		t.Fatal(err)
	}
	write(old)
	if err := run(root, false); err == nil || !strings.Contains(err.Error(), pagePath+" is not") {
		t.Errorf("an old page is accepted: %v", err)
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
	for _, want := range []string{"head\n", "tail\n", "### POST /v1/chat/completions", "Honoured: `cache_salt`, `chat_template_kwargs`, ", "`parallel_tool_calls`",
		"`best_of` (`1`)", "| ignored | why |\n", "`metadata`", "`messages[].content[].cache_control`", "| `include` in part | ", "| refused | why |\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
