// Command idmap makes the maps of required behaviour that docs/memory.md,
// docs/cache.md and docs/admin.md hold: for each row of the catalogue which tests show it, or why
// none is needed.
//
// It owns the lists of rows that have to be answered (ids.go, one for each page)
// and three words for those that no test answers: "by construction", "superseded"
// and "deferred", each with a reason. Tests are found by the id in their name
// (TestP9TheVictim..., TestG5..., TestInvariant4...). It refuses a gap: a row
// without a test and without a word, a word for a row that has a test, a test
// that names no row, a file whose map is not what it would write.
//
//	go run ./hack/idmap            checks the maps (make test-memory, make test-cache)
//	go run ./hack/idmap -write     writes them
//
// Start reading at build.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	begin = "<!-- map: written by `go run ./hack/idmap -write` -->\n"
	end   = "<!-- end of map -->\n"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	write := flag.Bool("write", false, "write the map instead of checking it")
	flag.Parse()
	if err := run(*root, *write); err != nil {
		fmt.Fprintln(os.Stderr, "idmap:", err)
		os.Exit(1)
	}
}

func run(root string, write bool) error {
	tests, err := find(root)
	if err != nil {
		return err
	}
	if gaps := strangers(pages, tests); len(gaps) > 0 {
		return gapsError(gaps)
	}
	for _, p := range pages {
		if err := p.bring(root, tests, write); err != nil {
			return err
		}
	}
	return nil
}

// page is a page of docs that holds a map: of these rows, with words for those
// that tests do not answer. A row may stand on several pages.
type page struct {
	file  string
	rows  []row
	words map[string]word
}

// bring writes a page's map, or checks that it holds the one of today.
func (p page) bring(root string, tests map[string][]string, write bool) error {
	table, err := build(p.rows, p.words, tests)
	if err != nil {
		return fmt.Errorf("%s: %w", p.file, err)
	}
	path := filepath.Join(root, filepath.FromSlash(p.file))
	doc, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the page that holds the map: %w", err)
	}
	next, err := splice(doc, table)
	if err != nil {
		return fmt.Errorf("%s: %w", p.file, err)
	}
	if !write {
		if !bytes.Equal(doc, next) {
			return fmt.Errorf("%s does not hold the map of today: run go run ./hack/idmap -write", p.file)
		}
		fmt.Printf("%s: %d rows: %s\n", p.file, len(p.rows), p.count(tests))
		return nil
	}
	if err := os.WriteFile(path, next, 0o644); err != nil {
		return fmt.Errorf("write the map: %w", err)
	}
	return nil
}

// strangers are tests that name a row which stands on no page.
func strangers(pages []page, tests map[string][]string) []string {
	known := map[string]bool{}
	for _, p := range pages {
		for _, r := range p.rows {
			known[r.id] = true
		}
	}
	var gaps []string
	for id, found := range tests {
		if !known[id] {
			gaps = append(gaps, fmt.Sprintf("%s names the row %s, which is not on a list", found[0], id))
		}
	}
	return gaps
}

func gapsError(gaps []string) error {
	slices.Sort(gaps)
	return errors.New("the map has gaps:\n  " + strings.Join(gaps, "\n  "))
}

// splice puts the table between the two marks.
func splice(doc []byte, table string) ([]byte, error) {
	head, rest, ok1 := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("the page has no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return []byte(head + begin + table + end + tail), nil
}

// word is why a row has no test.
type word struct{ kind, reason string }

// build makes the table, or lists every gap.
func build(rows []row, words map[string]word, tests map[string][]string) (string, error) {
	var gaps []string
	known := map[string]bool{}
	out := "| row | what | shown by |\n|---|---|---|\n"
	for _, r := range rows {
		known[r.id] = true
		w, worded := words[r.id]
		found := tests[r.id]
		switch {
		case len(found) == 0 && !worded:
			gaps = append(gaps, r.id+" ("+r.what+") has no test and no word")
		case len(found) > 0 && worded && w.kind != partly:
			gaps = append(gaps, r.id+" is called "+w.kind+" and has a test: "+found[0])
		case len(found) == 0 && worded && w.kind == partly:
			gaps = append(gaps, r.id+" is called "+partly+" and has no test at all")
		}
		out += fmt.Sprintf("| %s | %s | %s |\n", r.id, r.what, shown(found, w))
	}
	for id := range words {
		if !known[id] {
			gaps = append(gaps, "there is a word for "+id+", which is not on the list")
		}
	}
	if len(gaps) > 0 {
		return "", gapsError(gaps)
	}
	return out, nil
}

func shown(tests []string, w word) string {
	var parts []string
	for _, t := range tests {
		room, name, _ := strings.Cut(t, ".")
		parts = append(parts, "`"+name+"` ("+room+")")
	}
	if w.kind != "" {
		parts = append(parts, "*"+w.kind+"*: "+w.reason)
	}
	return strings.Join(parts, "; ")
}

func (p page) count(tests map[string][]string) string {
	n, all := 0, 0
	for _, r := range p.rows {
		if len(tests[r.id]) > 0 {
			n++
			all += len(tests[r.id])
		}
	}
	return fmt.Sprintf("%d by %d tests, %d by a word with its reason", n, all, len(p.rows)-n)
}
