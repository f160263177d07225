package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// elsewhere are reasons that are not constants of the API, each with the file
// that writes it.
var elsewhere = map[string]string{
	"InvalidOrder":         "../agent/pool/status.go",
	"EngineGuardInactive":  "../agent/pool/macmemory.go",
	"ReconcileFailed":      "../controllers/modeldeployment/troubles.go",
	"ModelNotFound":        "../metal/engine/refusal.go",
	"InvalidConfiguration": "../metal/engine/refusal.go",
	"MemoryLimit":          "../metal/engine/refusal.go",
	"BackendFailed":        "../metal/engine/refusal.go",
}

// reasons are the values of the API's constants called Reason...
func reasons(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../api/v1alpha1/conditions.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if strings.HasPrefix(name.Name, "Reason") {
				value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, value)
			}
		}
		return true
	})
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEveryReasonIsExplained(t *testing.T) {
	all := reasons(t)
	if len(all) < 40 {
		t.Fatalf("only %d reasons were found in the API", len(all))
	}
	explained := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, "troubleshooting.md"), -1) {
		explained[m[1]] = true
		file, other := elsewhere[m[1]]
		switch {
		case slices.Contains(all, m[1]):
		case !other:
			t.Errorf("troubleshooting.md explains %s, which nothing writes", m[1])
		case !strings.Contains(read(t, file), `"`+m[1]+`"`):
			t.Errorf("%s no longer writes %s; take it out of troubleshooting.md", file, m[1])
		}
	}
	for _, r := range all {
		if !explained[r] {
			t.Errorf("troubleshooting.md does not explain the reason %s: add a row with its meaning and the next step", r)
		}
	}
}

// documents are all that stand in the root and here.
func documents(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"../*.md", "*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	if len(out) < 7 {
		t.Fatalf("only %d documents: %q", len(out), out)
	}
	return out
}

var (
	path   = regexp.MustCompile("`((?:api|agent|cmd|config|controllers|docs|gateway|hack|metal)/[A-Za-z0-9_./-]*[A-Za-z0-9])`")
	target = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z0-9-]*)")
)

func TestDocumentsNameWhatExists(t *testing.T) {
	makefile := read(t, "../Makefile")
	for _, doc := range documents(t) {
		text := read(t, doc)
		for _, m := range path.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("%s names %s, which is not there", doc, m[1])
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names the target %s, which the Makefile does not have", doc, m[1])
			}
		}
	}
}
