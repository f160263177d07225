//go:build !race

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root of the repository.
const root = ".."

// elsewhere are reasons that are not constants of the API, each with the file
// that writes it.
var elsewhere = map[string]string{
	"InvalidAssignment":    "agent/pool/conditions.go",
	"EngineGuardInactive":  "agent/pool/macmemory.go",
	"StateNotSaved":        "agent/pool/recorder.go",
	"ModelNotFound":        "metal/engine/refusal.go",
	"InvalidConfiguration": "metal/engine/refusal.go",
	"MemoryLimit":          "metal/engine/refusal.go",
	"BackendFailed":        "metal/engine/refusal.go",
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// files are the paths that git knows or would take, relative to the root.
func files(t *testing.T, patterns ...string) []string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "--"}, patterns...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var found []string
	for _, path := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil { // deleted and not committed yet
			found = append(found, path)
		}
	}
	return found
}

// documents are all Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	out := slices.DeleteFunc(files(t, "*.md"), func(path string) bool { return strings.Contains(path, "testdata/") })
	if len(out) < 10 {
		t.Fatalf("only %d documents: %q", len(out), out)
	}
	return out
}

// constants are the values of a file's constants whose name has a prefix.
func constants(t *testing.T, path, prefix string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, 0)
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
			if !strings.HasPrefix(name.Name, prefix) || i >= len(spec.Values) {
				continue
			}
			if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				value, err := strconv.Unquote(lit.Value)
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

const troubleshoot = "docs/how-to/troubleshoot.md"

func TestEveryReasonIsExplained(t *testing.T) {
	all := constants(t, "api/v1alpha1/conditions.go", "Reason")
	if len(all) < 40 {
		t.Fatalf("only %d reasons were found in the API", len(all))
	}
	explained := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, troubleshoot), -1) {
		explained[m[1]] = true
		file, other := elsewhere[m[1]]
		switch {
		case slices.Contains(all, m[1]):
		case !other:
			t.Errorf("%s explains %s, which no program writes", troubleshoot, m[1])
		case !strings.Contains(read(t, file), `"`+m[1]+`"`):
			t.Errorf("%s no longer writes %s; remove it from %s", file, m[1], troubleshoot)
		}
	}
	for _, r := range all {
		if !explained[r] {
			t.Errorf("%s does not explain the reason %s: add a row with its meaning and the next step", troubleshoot, r)
		}
		if e, ok := Explain(r); ok != explained[r] || ok && e.Meaning == "" {
			t.Errorf("Explain(%s) = %+v, %v", r, e, ok)
		}
	}
}

func TestEveryErrorCodeIsListed(t *testing.T) {
	all := constants(t, "api/openai/errors.go", "Code")
	if len(all) < 15 {
		t.Fatalf("only %d codes were found", len(all))
	}
	text := section(t, "docs/reference/api.md", "## Errors")
	for _, code := range all { // those of api/agentapi are between gateway and agent
		if !strings.Contains(text, "`"+code+"`") {
			t.Errorf("docs/reference/api.md does not list the error code %s", code)
		}
	}
}

// section is the part of a page under a heading.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

func TestEveryReasonOfTheAutoscalerIsExplained(t *testing.T) {
	text := section(t, troubleshoot, "## Autoscaling")
	all := constants(t, "controllers/autoscaler/scale/scale.go", "")
	if len(all) < 10 {
		t.Fatalf("only %d reasons were found", len(all))
	}
	for _, r := range all {
		if !regexp.MustCompile(`(?m)^\|[^|]*\b` + r + `\b`).MatchString(text) {
			t.Errorf("%s does not explain %s", troubleshoot, r)
		}
	}
}

// TestQuotedMessagesExist: what a person searches the page for, a program says.
func TestQuotedMessagesExist(t *testing.T) {
	var code strings.Builder
	for _, path := range files(t, "agent/*.go", "api/*.go", "controllers/*.go") {
		if !strings.HasSuffix(path, "_test.go") {
			code.WriteString(read(t, path))
		}
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^\| (\*.+?) \|`).FindAllStringSubmatch(section(t, troubleshoot, "## A Mac that does not join"), -1) {
		for _, quoted := range regexp.MustCompile(`\*([^*]+)\*`).FindAllStringSubmatch(m[1], -1) {
			found++
			if !strings.Contains(code.String(), quoted[1]) {
				t.Errorf("%s quotes %q, which no program says", troubleshoot, quoted[1])
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d quoted messages were found", found)
	}
}

// outside of fenced blocks, where links and paths are.
func prose(text string) string {
	var out strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
			line = "\n"
		}
		if inside {
			line = "\n"
		}
		out.WriteString(line)
	}
	return out.String()
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	noWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors of a page, as GitHub makes them of headings.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(prose(text), -1) {
		out[strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

func TestLinksAndAnchorsResolve(t *testing.T) {
	linked := map[string]bool{"README.md": true}
	for _, page := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(prose(read(t, page)), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue // this repository says nothing of other sites
			}
			path := filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
			if target == "" {
				path = page
			}
			linked[path] = true
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, m[1])
				continue
			}
			if anchor != "" && !anchors(read(t, path))[anchor] {
				t.Errorf("%s links to %s, but %s has no such heading", page, m[1], path)
			}
		}
	}
	for _, page := range documents(t) {
		if !linked[page] {
			t.Errorf("no document links to %s", page)
		}
	}
}

var (
	path   = regexp.MustCompile("`((?:api|agent|charts|cmd|config|controllers|docs|gateway|hack|metal|test)/[A-Za-z0-9_./-]*[A-Za-z0-9])`")
	target = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z0-9-]*)")
	code   = regexp.MustCompile(`\bdocs/[a-z/-]+\.md\b`)
)

func TestDocumentsNameWhatExists(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, doc := range documents(t) {
		text := read(t, doc)
		for _, m := range path.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ".Test") {
				continue // a test, which TestEveryAttackIsInTheTable looks for
			}
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names the target %s, which the Makefile does not have", doc, m[1])
			}
		}
	}
}

// TestPagesThatProgramsNameExist, in messages, comments, charts and scripts.
func TestPagesThatProgramsNameExist(t *testing.T) {
	for _, file := range files(t, "*.go", "*.yaml", "*.txt", "*.tpl", "*.sh", "*.json", "Makefile") {
		if strings.Contains(file, "testdata/") {
			continue
		}
		for _, page := range code.FindAllString(read(t, file), -1) {
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s names %s, which does not exist", file, page)
			}
		}
	}
}

// TestEveryShellBlockSaysHowItIsTested; test/docs does what the marks say.
func TestEveryShellBlockSaysHowItIsTested(t *testing.T) {
	shells := 0
	for _, page := range documents(t) {
		for _, b := range Blocks(read(t, page)) {
			_, background := b.Marks["background"]
			switch {
			case b.Language == "":
				t.Errorf("%s:%d: a block without a language", page, b.Line)
			case !slices.Contains([]string{"sh", "bash", "shell", "console"}, b.Language):
				continue
			case b.Language != "sh":
				t.Errorf("%s:%d: write sh, not %s", page, b.Line, b.Language)
			case !slices.Contains([]string{"local", "cluster", "flags"}, b.Marks["test"]):
				t.Errorf("%s:%d: a shell block says test=%q, want local, cluster or flags", page, b.Line, b.Marks["test"])
			case (b.Marks["test"] == "cluster") != (b.Marks["id"] != ""):
				t.Errorf("%s:%d: id=NAME belongs to test=cluster, by which a test finds the block", page, b.Line)
			case background && b.Marks["test"] != "local":
				t.Errorf("%s:%d: background belongs to test=local", page, b.Line)
			}
			shells++
		}
	}
	if shells < 20 {
		t.Errorf("only %d shell blocks were found", shells)
	}
}

// TestClusterBlocksAreTaken by a test, which names page and id.
func TestClusterBlocksAreTaken(t *testing.T) {
	var tests strings.Builder
	for _, path := range files(t, "test/*.go") {
		tests.WriteString(read(t, path))
	}
	for _, page := range documents(t) {
		for _, b := range Blocks(read(t, page)) {
			if id := b.Marks["id"]; id != "" && !strings.Contains(tests.String(), `"`+strings.TrimPrefix(page, "docs/")+`", "`+id+`"`) {
				t.Errorf("%s:%d: no test takes the block %s by docs.Script", page, b.Line, id)
			}
		}
	}
}

// TestEveryAttackIsInTheTable of SECURITY.md, and every test that it names exists.
func TestEveryAttackIsInTheTable(t *testing.T) {
	tests := map[string]bool{}
	for _, path := range files(t, "*_test.go") {
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			tests[filepath.ToSlash(filepath.Dir(path))+"."+m[1]] = true
		}
	}
	if len(tests) < 50 {
		t.Fatalf("only %d tests were found", len(tests))
	}
	named := map[string]bool{}
	test := regexp.MustCompile("`(\\S+\\.Test\\w+)`")
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]{3,} \| [^|]{3,} \| (.*) \|$`).FindAllStringSubmatch(read(t, "SECURITY.md"), -1) {
		for _, m := range test.FindAllStringSubmatch(row[1], -1) {
			named[m[1]] = true
			if !tests[m[1]] {
				t.Errorf("SECURITY.md names %s, which does not exist", m[1])
			}
		}
	}
	for name := range tests {
		if strings.Contains(name, ".TestAttack") && !named[name] {
			t.Errorf("SECURITY.md lacks %s: add a row with the attack and what refuses it", name)
		}
	}
}
