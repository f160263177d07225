// Command apidoc writes the tables of docs/api.md: of every field that the
// references of the APIs document, whether it is honoured, changes nothing, or is
// refused, and with which sentence; and the OpenAPI documents in api/openapi. The
// decoders themselves are asked. Before the fields stands the conformance table of
// package test/oracle/clients/table.
//
//	go run ./hack/apidoc            checks the page and the documents
//	go run ./hack/apidoc -write     writes them
//
// It owns the list of documented fields (fields.go), each with a value that means
// something, and their schemas (schemas.go). Answers are described from the types
// that are written. Start reading at table and at document.render.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/test/oracle/clients/table"
)

const (
	pagePath = "docs/api.md"
	// documentPath is where the OpenAPI documents lie.
	documentPath = "api/openapi/"
	begin        = "<!-- fields: written by `go run ./hack/apidoc -write` -->\n"
	end          = "<!-- end of fields -->\n"

	beginRows = "<!-- rows: written by `go run ./hack/apidoc -write` -->\n"
	endRows   = "<!-- end of rows -->\n"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	write := flag.Bool("write", false, "write the page instead of checking it")
	flag.Parse()
	if err := run(*root, *write); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

func run(root string, write bool) error {
	files, err := wanted(root)
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := settle(root, path, files[path], write); err != nil {
			return err
		}
	}
	return nil
}

// settle has a file be what it is to be, or says that it is not.
func settle(root, name string, want []byte, write bool) error {
	path := filepath.Join(root, filepath.FromSlash(name))
	if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, want) {
		return nil
	}
	if !write {
		return fmt.Errorf("%s is not what the decoders say: go run ./hack/apidoc -write", name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, want, 0o644)
}

// wanted are all files by their paths, as they are to be.
func wanted(root string) (map[string][]byte, error) {
	page, err := wantedPage(root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{pagePath: page}
	for _, d := range documents() {
		if files[documentPath+d.file], err = d.render(); err != nil {
			return nil, fmt.Errorf("%s: %w", d.file, err)
		}
	}
	return files, nil
}

func wantedPage(root string) ([]byte, error) {
	path := filepath.Join(root, filepath.FromSlash(pagePath))
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	tables, err := all()
	if err != nil {
		return nil, err
	}
	rows, err := conformance()
	if err != nil {
		return nil, err
	}
	text, err := between(string(page), begin, end, tables)
	if err == nil {
		text, err = between(text, beginRows, endRows, rows)
	}
	if err != nil {
		return nil, err
	}
	return []byte(text), nil
}

// between replaces what stands between two marks.
func between(page, begin, end, what string) (string, error) {
	head, rest, found := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("%s misses the marks %q and %q, between which a table stands", pagePath, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return head + begin + what + end + tail, nil
}

// conformance is the table that make test-clients has the official clients play.
func conformance() (string, error) {
	rows, err := table.Rows()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, api := range []string{"openai", "anthropic"} {
		head, line := "\n| request | what must hold |", "|---|---|"
		var clients []table.Client
		for _, c := range table.Clients() {
			if c.API == api {
				clients = append(clients, c)
				head, line = head+" "+c.Name+" |", line+"---|"
			}
		}
		out.WriteString(head + "\n" + line + "\n")
		for _, r := range rows {
			if r.API != api {
				continue
			}
			fmt.Fprintf(&out, "| %s | %s |", r.Name, r.Says)
			for _, c := range clients {
				verdict := "yes"
				if r.Refused() {
					verdict = "refused"
				}
				if !r.For(c) {
					verdict = "not sent: " + r.Why
				}
				out.WriteString(" " + verdict + " |")
			}
			out.WriteString("\n")
		}
	}
	return out.String(), nil
}

// all tables, one for each route.
func all() (string, error) {
	var out strings.Builder
	for _, r := range routes() {
		t, err := r.table()
		if err != nil {
			return "", err
		}
		out.WriteString(t)
	}
	return out.String(), nil
}

// route is one whose body is decoded.
type route struct {
	name   string
	base   map[string]string // a body that is taken
	fields map[string]string // documented ones, each with a value that means something
	// schemas of the fields that are taken, and of others.
	schemas map[string]string
	decode  func([]byte) (any, error)
}

// table says what becomes of each field.
func (r route) table() (string, error) {
	without, err := r.decode(body(r.base, "", ""))
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.name, err)
	}
	out := "\n### " + r.name + "\n\n| field | | |\n|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(r.fields)) {
		got, err := r.decode(body(r.base, name, r.fields[name]))
		var refusal *openai.Error
		switch {
		case errors.As(err, &refusal):
			out += fmt.Sprintf("| `%s` | refused | %s |\n", name, refusal.Message)
		case err != nil:
			return "", fmt.Errorf("%s, %s: %w", r.name, name, err)
		case same(got, without):
			out += fmt.Sprintf("| `%s` | yes | taken; nothing follows of it |\n", name)
		default:
			out += fmt.Sprintf("| `%s` | yes | |\n", name)
		}
	}
	return out, nil
}

// same compares what was decoded; ids that are made on the way differ each time.
func same(a, b any) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(withoutIDs(x), withoutIDs(y))
}

func withoutIDs(b []byte) []byte {
	const mark = `"id":"`
	for at := bytes.Index(b, []byte(mark)); at >= 0; at = bytes.Index(b, []byte(mark)) {
		n := bytes.IndexByte(b[at+len(mark):], '"')
		b = slices.Concat(b[:at], b[at+len(mark)+n+1:])
	}
	return b
}

// body is the base with one member more, or another one.
func body(base map[string]string, name, value string) []byte {
	members := maps.Clone(base)
	if name != "" {
		members[name] = value
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(members)) {
		out = append(out, fmt.Sprintf("%q:%s", k, members[k]))
	}
	return []byte("{" + strings.Join(out, ",") + "}")
}
