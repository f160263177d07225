package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// entry is one guard: where it stands, what breaks it, and what should notice.
type entry struct {
	line     int // of its first key, for messages
	name     string
	file     string // relative to the module
	pkg      string // ./path of the package with the test
	args     []string
	old, new string
}

// test names what the entry runs.
func (e entry) test() string { return e.pkg + " " + strings.Join(e.args, " ") }

// parse reads the list: entries apart by lines of three dashes, each with the
// keys name, file, test, old and new; the last two hold text whose every line
// is indented by two blanks more. Lines that begin with # are comments.
func parse(text string) ([]entry, error) {
	p := parser{names: map[string]int{}}
	for i, line := range strings.Split(text, "\n") {
		p.feed(i+1, strings.TrimSuffix(line, "\r"))
	}
	p.end()
	return p.entries, errors.Join(p.errs...)
}

type parser struct {
	entries []entry
	errs    []error
	names   map[string]int // line of the entry with that name

	line   int // of the current entry; 0: none has begun
	fields map[string]string
	block  string // old or new while its text is read
	text   []string
}

func (p *parser) fail(line int, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...)))
}

func (p *parser) feed(n int, line string) {
	if p.block != "" {
		if text, ok := strings.CutPrefix(line, "  "); ok || strings.TrimSpace(line) == "" {
			p.text = append(p.text, text)
			if !ok {
				p.text[len(p.text)-1] = ""
			}
			return
		}
		p.closeBlock()
	}
	switch {
	case line == "---":
		p.end()
		return
	case strings.TrimSpace(line) == "", strings.HasPrefix(line, "#"):
		return
	}
	key, value, ok := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	if !ok {
		p.fail(n, "neither a key nor text of old or new (which is indented by two blanks): %q", line)
		return
	}
	if p.line == 0 {
		p.line, p.fields = n, map[string]string{}
	}
	if _, twice := p.fields[key]; twice {
		p.fail(n, "%s is given twice; entries are apart by a line ---", key)
		return
	}
	switch key {
	case "name", "file", "test":
		p.fields[key] = value
	case "old", "new":
		if value != "|" {
			p.fail(n, "%s: wants a | and its text on the lines below", key)
		}
		p.block, p.text = key, nil
		p.fields[key] = ""
	default:
		p.fail(n, "no key is called %q (name, file, test, old, new)", key)
	}
}

func (p *parser) closeBlock() {
	if p.block == "" {
		return
	}
	// Empty lines at the end only part one entry from the next.
	for len(p.text) > 0 && p.text[len(p.text)-1] == "" {
		p.text = p.text[:len(p.text)-1]
	}
	p.fields[p.block] = strings.Join(p.text, "\n")
	p.block = ""
}

// end finishes the entry that was being read.
func (p *parser) end() {
	p.closeBlock()
	if p.line == 0 {
		return
	}
	line := p.line
	p.line = 0
	for _, key := range []string{"name", "file", "test", "old", "new"} {
		if _, ok := p.fields[key]; !ok {
			p.fail(line, "the entry has no %s", key)
			return
		}
	}
	e := entry{line: line, name: p.fields["name"], file: p.fields["file"], old: p.fields["old"], new: p.fields["new"]}
	words := strings.Fields(p.fields["test"])
	switch {
	case e.name == "":
		p.fail(line, "name is empty: say in a short sentence what is guarded")
	case p.names[e.name] != 0:
		p.fail(line, "name is that of the entry at line %d: %q", p.names[e.name], e.name)
	case e.old == "":
		p.fail(line, "old is empty")
	case e.old == e.new:
		p.fail(line, "old and new are the same")
	case len(words) < 3 || !strings.HasPrefix(words[0], "./") || words[1] != "-run":
		p.fail(line, "test: wants ./path/to/package -run TestName, not %q", p.fields["test"])
	default:
		p.names[e.name] = line
		e.pkg, e.args = words[0], words[1:]
		p.entries = append(p.entries, e)
	}
}

// check reads the sources and wants the old text of each entry exactly once.
func check(root string, entries []entry) error {
	var errs []error
	for _, e := range entries {
		if _, err := e.mutated(root); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %s: %w", e.line, e.name, err))
		}
	}
	return errors.Join(errs...)
}

// mutated is the file's text with the guard broken.
func (e entry) mutated(root string) (string, error) {
	if !filepath.IsLocal(e.file) {
		return "", fmt.Errorf("%s lies outside the module", e.file)
	}
	b, err := os.ReadFile(filepath.Join(root, e.file))
	if err != nil {
		return "", err
	}
	switch n := strings.Count(string(b), e.old); n {
	case 1:
		return strings.Replace(string(b), e.old, e.new, 1), nil
	case 0:
		return "", fmt.Errorf("%s no longer holds the old text: does the guard still stand? Then change the entry with it", e.file)
	default:
		return "", fmt.Errorf("%s holds the old text %d times: add lines to it until it is unique", e.file, n)
	}
}
