// Command apidoc writes the field lists of docs/reference/api.md: for every
// field that the references of the APIs document, whether it is honoured, has no
// effect, or is refused; and the OpenAPI documents in api/openapi. It asks the
// decoders themselves.
//
//	go run ./hack/apidoc            checks the page and the documents
//	go run ./hack/apidoc -write     writes them
//
// It owns the list of documented fields (fields.go), each with a value that has
// an effect, and their schemas (schemas.go). Answers are described from the types
// that are written. Start reading at route.summary and at document.render.
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
	pagePath = "docs/reference/api.md"
	// documentPath is where the OpenAPI documents lie.
	documentPath = "api/openapi/"
	begin        = "<!-- fields: written by `go run ./hack/apidoc -write` -->\n"
	end          = "<!-- end of fields -->\n"
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

// settle compares a file with its generated content, or writes it.
func settle(root, name string, want []byte, write bool) error {
	path := filepath.Join(root, filepath.FromSlash(name))
	if got, err := os.ReadFile(path); err == nil && bytes.Equal(got, want) {
		return nil
	}
	if !write {
		return fmt.Errorf("%s is not up to date with the decoders: go run ./hack/apidoc -write", name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, want, 0o644)
}

// wanted has the generated content of every file, by path.
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
	fields, err := summaries()
	if err != nil {
		return nil, err
	}
	text, err := between(string(page), begin, end, fields)
	if err != nil {
		return nil, err
	}
	return []byte(text), nil
}

// between replaces the text between two marks.
func between(page, begin, end, what string) (string, error) {
	head, rest, found := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("%s lacks the marks %q and %q", pagePath, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return head + begin + what + end + tail, nil
}

// summaries of all routes.
func summaries() (string, error) {
	var out strings.Builder
	for _, r := range routes() {
		s, err := r.summary()
		if err != nil {
			return "", err
		}
		out.WriteString(s)
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

// summary sorts the fields by what the decoder does with them.
func (r route) summary() (string, error) {
	without, err := r.decode(body(r.base, "", ""))
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.name, err)
	}
	var honoured, idle, refused []string
	for _, name := range slices.Sorted(maps.Keys(r.fields)) {
		got, err := r.decode(body(r.base, name, r.fields[name]))
		var refusal *openai.Error
		switch {
		case errors.As(err, &refusal):
			refused = append(refused, fmt.Sprintf("`%s`%s", name, neutral(refusal.Message)))
		case err != nil:
			return "", fmt.Errorf("%s, %s: %w", r.name, name, err)
		case same(got, without):
			idle = append(idle, "`"+name+"`")
		default:
			honoured = append(honoured, "`"+name+"`")
		}
	}
	out := "\n### " + r.name + "\n\n"
	for _, group := range []struct {
		title string
		names []string
	}{{"Honoured", honoured}, {"Accepted without effect", idle}, {"Refused", refused}} {
		if len(group.names) > 0 {
			out += "- " + group.title + ": " + strings.Join(group.names, ", ") + ".\n"
		}
	}
	return out, nil
}

// neutral are the values of a refused field that change nothing, as its refusal
// offers them.
func neutral(refusal string) string {
	_, offer, found := strings.Cut(refusal, "or send ")
	if !found {
		return ""
	}
	return " (`" + strings.ReplaceAll(strings.TrimSuffix(offer, "."), " or ", "` or `") + "`)"
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
