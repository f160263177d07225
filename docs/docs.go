// Package docs holds the documents, and gives programs the parts of them that
// they use: what troubleshoot.md explains of a condition reason, and the commands
// that tests run.
//
// It owns the text and refuses a second copy of it: a program that explains a
// reason prints the document's row, and a test that runs a documented command
// takes it from the page. Its own tests check links, anchors, paths, reasons and
// attacks; test/docs runs the commands.
//
// Start reading at Explain and Blocks.
package docs

import (
	"embed"
	"fmt"
	"regexp"
	"strings"
)

// pages has every document of this folder.
//
//go:embed *.md how-to/*.md concepts/*.md reference/*.md
var pages embed.FS

// Explanation is one row of troubleshoot.md.
type Explanation struct {
	// Meaning of the reason.
	Meaning string
	// Next step of a person; empty where there is none to take.
	Next string
}

var row = regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]+)` \\| ([^|]{10,}) \\| ([^|]{4,}) \\|$")

// Explain returns what the reason of a condition means and what to do; ok is
// false for a reason that the document does not have.
func Explain(reason string) (e Explanation, ok bool) {
	text, err := pages.ReadFile("how-to/troubleshoot.md")
	if err != nil {
		return e, false
	}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if m[1] != reason {
			continue
		}
		e = Explanation{Meaning: strings.TrimSpace(m[2]), Next: strings.TrimSpace(m[3])}
		if e.Next == "none" {
			e.Next = ""
		}
		return e, true
	}
	return e, false
}

// Block is one fenced block of a page.
type Block struct {
	// Line of the page at which the fence opens.
	Line int
	// Language is the first word of the info string, such as sh or yaml.
	Language string
	// Marks are the other words of the info string, such as test=local; a word
	// without a value stands for itself.
	Marks map[string]string
	// Text between the fences.
	Text string
}

// Blocks returns the fenced blocks of a page, in order.
func Blocks(page string) []Block {
	var out []Block
	var open *Block
	line := 0
	for l := range strings.Lines(page) {
		line++
		trimmed := strings.TrimSpace(l)
		switch {
		case open == nil && strings.HasPrefix(trimmed, "```"):
			words := strings.Fields(strings.TrimPrefix(trimmed, "```"))
			open = &Block{Line: line, Marks: map[string]string{}}
			for i, w := range words {
				name, value, _ := strings.Cut(w, "=")
				if i == 0 {
					open.Language = w
				} else {
					open.Marks[name] = value
				}
			}
		case open != nil && trimmed == "```":
			out = append(out, *open)
			open = nil
		case open != nil:
			open.Text += l
		}
	}
	return out
}

// Script returns the commands of the block of a page of this folder that has the
// mark id, such as Script("how-to/install.md", "install").
func Script(page, id string) (string, error) {
	text, err := pages.ReadFile(page)
	if err != nil {
		return "", fmt.Errorf("document %s: %w", page, err)
	}
	for _, b := range Blocks(string(text)) {
		if b.Marks["id"] == id {
			return b.Text, nil
		}
	}
	return "", fmt.Errorf("%s has no block with id=%s", page, id)
}
