// Command apidoc writes the tables of docs/api.md: of every field that the
// references of the APIs document, whether it is honoured, changes nothing, or is
// refused, and with which sentence. The decoders themselves are asked.
//
//	go run ./hack/apidoc            checks the page
//	go run ./hack/apidoc -write     writes it
//
// It owns the list of documented fields (fields.go), each with a value that means
// something. Start reading at table.
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
)

const (
	pagePath = "docs/api.md"
	begin    = "<!-- fields: written by `go run ./hack/apidoc -write` -->\n"
	end      = "<!-- end of fields -->\n"
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
	path := filepath.Join(root, filepath.FromSlash(pagePath))
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	tables, err := all()
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s misses the marks between which the tables stand", pagePath)
	}
	want := []byte(head + begin + tables + end + tail)
	switch {
	case bytes.Equal(page, want):
		return nil
	case write:
		return os.WriteFile(path, want, 0o644)
	}
	return fmt.Errorf("%s is not what the decoders say: go run ./hack/apidoc -write", pagePath)
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
	decode func([]byte) (any, error)
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
