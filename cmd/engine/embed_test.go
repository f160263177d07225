package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
)

func reader(t *testing.T, name string) string {
	t.Helper()
	all := tinymodel.Readers()
	dir := filepath.Join(t.TempDir(), "model")
	if err := all[slices.IndexFunc(all, func(r tinymodel.Reader) bool { return r.Name == name })].Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEmbedPrintsALineForEachText(t *testing.T) {
	out, stderr, code := runProgram(t, "", "embed", "--model", reader(t, "xlm-roberta cls"), "--input", "a man", "--input", "food", "--prompt", "query")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitOK || len(lines) != 2 {
		t.Fatalf("embed printed %q, %q", out, stderr)
	}
	for _, line := range lines {
		var v embedding
		if err := json.Unmarshal([]byte(line), &v); err != nil || len(v.Embedding) != 64 || v.Tokens < 4 {
			t.Errorf("embed printed %q (%v)", line, err)
		}
	}
}

func TestRerankPrintsTheBestFirst(t *testing.T) {
	m := reader(t, "bert rerank")
	args := []string{"rerank", "--model", m, "--query", "Where does a man eat?", "--document", "Paris", "--document", "bread and food", "--document", "the cats"}
	out, stderr, code := runProgram(t, "", append(args, "--json")...)
	var got ranking
	if err := json.Unmarshal([]byte(out), &got); code != exitOK || err != nil || len(got.Results) != 3 || got.Tokens < 20 {
		t.Fatalf("rerank printed %q, %q", out, stderr)
	}
	if !slices.IsSortedFunc(got.Results, func(a, b ranked) int { return int(1e6 * (b.Score - a.Score)) }) {
		t.Errorf("results %+v are not in order", got.Results)
	}
	documents := []string{"Paris", "bread and food", "the cats"}
	if out, _, _ := runProgram(t, "", args...); !strings.HasSuffix(strings.SplitN(out, "\n", 2)[0], "  "+documents[got.Results[0].Index]) {
		t.Errorf("rerank printed %q, want document %d first", out, got.Results[0].Index)
	}
}

func TestReadersAreMisused(t *testing.T) {
	vectors, pairs := reader(t, "bert mean"), reader(t, "bert rerank")
	long := strings.Repeat("a ", 200)
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"text of an encoder":        {args: []string{"generate", "--model", vectors, "--prompt", "a"}, code: exitFailure, says: "use it for embeddings"},
		"vectors of a reranker":     {args: []string{"embed", "--model", pairs, "--input", "a"}, code: exitModel, says: "for Rerank, not for Embed"},
		"scores of an embedder":     {args: []string{"rerank", "--model", vectors, "--query", "a", "--document", "b"}, code: exitModel, says: "for Embed, not for Rerank"},
		"an encoder to convert":     {args: []string{"convert", "--model", vectors, "--out", filepath.Join(t.TempDir(), "out")}, code: exitModel, says: "conversion of an encoder"},
		"what is too long":          {args: []string{"embed", "--model", vectors, "--input", long}, code: exitUsage, says: "the model supports 40"},
		"a document of that length": {args: []string{"rerank", "--model", pairs, "--query", "a", "--document", long}, code: exitUsage, says: "document 0"},
		"an unknown prompt":         {args: []string{"embed", "--model", vectors, "--input", "a", "--prompt", "x"}, code: exitUsage, says: "the model has none"},
		"nothing to embed":          {args: []string{"embed", "--model", vectors}, code: exitUsage, says: "missing --input"},
		"nothing to score":          {args: []string{"rerank", "--model", pairs, "--query", "a"}, code: exitUsage, says: "missing --document"},
	} {
		if _, stderr, code := runProgram(t, "", c.args...); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit code %d, %q; want %d saying %q", name, code, stderr, c.code, c.says)
		}
	}
	if out, stderr, code := runProgram(t, "", "embed", "--model", vectors, "--input", long, "--truncate"); code != exitOK || !strings.Contains(out, `"tokens":40`) {
		t.Errorf("cut to the limit: %q, %q", out, stderr)
	}
	out, stderr, code := runProgram(t, "", "embed", "--model", vectors, "--input", long, "--input", "a", "--truncate")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); code != exitOK || len(lines) != 2 || !strings.Contains(lines[0], `"tokens":40`) || strings.Contains(lines[1], `"tokens":4`) {
		t.Errorf("the tokens of each: %q, %q", out, stderr)
	}
}
