// Command apidoc writes the field lists of docs/reference/api.md: for every
// field that the references of the APIs document, whether it is honoured, ignored
// or refused, and why; and the OpenAPI documents in api/openapi. It asks the
// decoders themselves.
//
//	go run ./hack/apidoc            checks the page and the documents
//	go run ./hack/apidoc -write     writes them
//
// It owns the list of documented fields (fields.go), each with a value that has
// an effect where the field is honoured, and their schemas (schemas.go). The
// decoders' packages list the fields without effect. Responses are described from
// the types that are written. The documents describe what is accepted by default;
// tests also hold the strict variant of each schema to strict decoding. Start
// reading at route.summary and at document.render.
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
	"regexp"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	pagePath = "docs/reference/api.md"
	// documentPath is the folder of the OpenAPI documents.
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

// wanted returns the generated content of every file, by path.
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

// route is an API route whose body is decoded.
type route struct {
	name   string
	base   map[string]string // a valid body
	fields map[string]string // documented ones, each with a value
	// schemas of the fields that are honoured.
	schemas map[string]string
	decode  func(*openai.Decoder, []byte) (any, error)
	unused  []openai.Place
	// partly are fields of which some values are ignored, and why.
	partly map[string]string
}

// summary lists the fields by what the decoder does with them.
func (r route) summary() (string, error) {
	var honoured []string
	for _, name := range slices.Sorted(maps.Keys(r.fields)) {
		yes, err := r.honours(name)
		if err != nil {
			return "", fmt.Errorf("%s, %s: %w", r.name, name, err)
		}
		if yes {
			honoured = append(honoured, "`"+name+"`")
		}
	}
	out := "\n### " + r.name + "\n\nHonoured: " + strings.Join(honoured, ", ") + ".\n"
	ignored, refused := r.reasons()
	return out + table("ignored", ignored) + table("refused", refused), nil
}

// reasons groups the ignored and the refused fields by reason. The accepted values follow
// the name of a refused field.
func (r route) reasons() (ignored, refused map[string][]string) {
	ignored, refused = map[string][]string{}, map[string][]string{}
	for _, p := range r.unused {
		for _, u := range p.Unused {
			name := "`" + pathOf(p, u.Name) + "`"
			switch {
			case !u.Refused:
				ignored[u.Why] = append(ignored[u.Why], name)
				continue
			case len(u.Neutral) > 0:
				name += " (`" + strings.Join(u.Neutral, "`, `") + "`)"
			}
			refused[u.Why] = append(refused[u.Why], name)
		}
	}
	for name, why := range r.partly {
		ignored[why] = append(ignored[why], "`"+name+"` in part")
	}
	return ignored, refused
}

// table has a row for each reason, in the order of the first fields.
func table(verdict string, fields map[string][]string) string {
	var rows []string
	for why, names := range fields {
		slices.Sort(names)
		rows = append(rows, fmt.Sprintf("| %s | %s |\n", strings.Join(slices.Compact(names), ", "), why))
	}
	if len(rows) == 0 {
		return ""
	}
	slices.Sort(rows)
	return "\n| " + verdict + " | why |\n|---|---|\n" + strings.Join(rows, "")
}

func pathOf(p openai.Place, name string) string {
	if p.Path == "" {
		return name
	}
	return p.Path + "." + name
}

// unusedField finds a field without effect by its path.
func (r route) unusedField(path string) (openai.Unused, bool) {
	for _, p := range r.unused {
		for _, u := range p.Unused {
			if pathOf(p, u.Name) == path {
				return u, true
			}
		}
	}
	return openai.Unused{}, false
}

// honours reports whether the value of a documented field has an effect. A field without
// effect must be in a list of the decoder's package, with the reason.
func (r route) honours(name string) (bool, error) {
	without, err := r.decode(&openai.Decoder{}, body(r.base, "", ""))
	if err != nil {
		return false, err
	}
	var d openai.Decoder
	got, err := r.decode(&d, body(r.base, name, r.fields[name]))
	var refusal *openai.Error
	switch {
	case errors.As(err, &refusal):
		if u, ok := r.unusedField(index.ReplaceAllString(refusal.Param, "[]")); !ok || !u.Refused {
			return false, fmt.Errorf("it is refused, and not listed as such: %w", err)
		}
		return false, nil
	case err != nil:
		return false, err
	case !same(got, without):
		return true, nil
	case len(d.Ignored()) == 0:
		return false, fmt.Errorf("its value has no effect; give it another one in fields.go")
	}
	for _, ignored := range d.Ignored() {
		if _, ok := r.unusedField(ignored); !ok && r.partly[ignored] == "" {
			return false, fmt.Errorf("%s is ignored, and not listed as such", ignored)
		}
	}
	return false, nil
}

// index of a list in a path.
var index = regexp.MustCompile(`\[[0-9]+\]`)

// same compares decoded requests; generated ids differ each time.
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

// body returns base with a member added or replaced.
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
