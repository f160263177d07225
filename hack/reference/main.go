// Command reference writes the generated parts of docs/reference: resources.md
// from the CRDs and the chart's values, metrics.md from the source of every
// metric and the chart's alert rules, and cli.md from the programs' own help.
//
//	make build && go run ./hack/reference            checks the pages
//	make build && go run ./hack/reference -write     writes them
//
// It owns the text between the marks of these pages. It refuses to invent: a
// field, metric or flag without a description is an error. Start reading at
// pages, then sections.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	begin = "<!-- generated: go run ./hack/reference -write -->\n"
	end   = "<!-- end of generated -->\n"
)

// page is a document with generated parts.
type page struct {
	path     string
	generate func(root string) (string, error)
}

func pages() []page {
	return []page{
		{"docs/reference/resources.md", resources},
		{"docs/reference/metrics.md", metrics},
		{"docs/reference/cli.md", commands},
	}
}

func main() {
	root := flag.String("root", ".", "root of the repository, whose bin holds the programs")
	write := flag.Bool("write", false, "write the pages instead of checking them")
	flag.Parse()
	if err := run(*root, *write); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(root string, write bool) error {
	var wrong []error
	for _, p := range pages() {
		wrong = append(wrong, p.settle(root, write))
	}
	return errors.Join(wrong...)
}

// settle checks or writes one page.
func (p page) settle(root string, write bool) error {
	path := filepath.Join(root, filepath.FromSlash(p.path))
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := p.generate(root)
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s lacks the marks %q and %q", p.path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	want := head + begin + text + end + tail
	switch {
	case want == string(old):
		return nil
	case write:
		return os.WriteFile(path, []byte(want), 0o644)
	default:
		return fmt.Errorf("%s is out of date: run make build, then go run ./hack/reference -write", p.path)
	}
}

// sentence returns the first sentence of a description, without a leading "NAME is".
func sentence(name, description string) string {
	text := strings.Join(strings.Fields(description), " ")
	text, _ = cutSentence(text)
	rest, named := strings.CutPrefix(text, name+" ")
	word, after, _ := strings.Cut(rest, " ")
	switch {
	case strings.HasPrefix(text, name+": "):
		return strings.TrimPrefix(text, name+": ")
	case !named || slices.Contains([]string{"of", "that", "to", "for", "in", "on", "at", "by", "which"}, word):
		return text
	case word == "is" || word == "are":
		return after
	}
	return rest
}

// cutSentence splits at the first full stop that ends a sentence.
func cutSentence(text string) (first, rest string) {
	for i := 1; i+2 < len(text); i++ {
		lower := text[i+2] >= 'a' && text[i+2] <= 'z'
		if text[i] == '.' && text[i+1] == ' ' && text[i-1] != '.' && !lower {
			return text[:i], text[i+2:]
		}
	}
	return strings.TrimSuffix(text, "."), ""
}
