//go:build !race

package lint

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// countsFile records how many phrases are left.
const countsFile = "dialect.txt"

var write = flag.Bool("write", false, "write the lower counts of phrases")

func list(t *testing.T) dialect {
	t.Helper()
	d, err := parseDialect(phraseList)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// repository is all text that is written by people, in Go files and documents.
func repository(t *testing.T) (sources []source, segments []segment) {
	t.Helper()
	sources = tree(t, root)
	segments = goSegments(sources)
	committed(t, func(name, text string) bool {
		if isDocument(name, text) {
			segments = append(segments, documentSegment(name, text))
		}
		return true
	})
	return sources, segments
}

func TestDialectOnlyBecomesLess(t *testing.T) {
	d := list(t)
	sources, segments := repository(t)
	found := append(d.findings(segments), d.identifiers(sources)...)
	recorded, err := parseCounts(read(t, countsFile))
	if err != nil {
		t.Fatal(err)
	}
	if *write {
		recorded = lowered(recorded, countOf(found))
		if err := os.WriteFile(countsFile, []byte(recorded.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	none(t, ratchet(recorded, found))
}

// User-visible text has a bound of its own.
func TestDialectIsRareInWhatUsersRead(t *testing.T) {
	d := list(t)
	_, segments := repository(t)
	got, found := d.density(segments)
	t.Logf("%d phrases in what users read, %.2f per 10,000 words; at most %g are allowed", len(found), got, float64(visibleBound))
	if got <= visibleBound {
		return
	}
	for _, f := range found {
		t.Error(f)
	}
}

func TestDialectIsFoundInItsFixture(t *testing.T) {
	const folder = "testdata/dialect"
	d := list(t)
	sources := tree(t, folder)
	segments := append(goSegments(sources), documentSegment("doc.md", read(t, filepath.Join(folder, "document.txt"))))
	var got []string
	for _, f := range append(d.findings(segments), d.identifiers(sources)...) {
		got = append(got, fmt.Sprintf("%s %s %s", f.at, f.kind, f))
	}
	same(t, got, strings.Split(strings.TrimSpace(read(t, folder+"/findings.txt")), "\n"))
}

func TestDialectDoesNotCountPlainEnglish(t *testing.T) {
	d := list(t)
	for _, text := range []string{
		"Go is a language; go build, go test and go vet are commands, and go ./... is none.",
		"The request goes through the gateway to the Mac.", "A row that goes\nto another.",
		"See the table below. Values below 0.5, below zero, and below the limit are refused.",
		"It was left behind. A Mac behind NAT, behind the Service, behind a reverse proxy.",
		"'%s' is not one of a, b.", "It tells the two kinds apart.", "an essay, besides, hindbehind, belowstairs",
	} {
		if got := d.in(text); len(got) > 0 {
			t.Errorf("%q: found %v", text, got)
		}
	}
}

func TestDialectCountsAreARatchet(t *testing.T) {
	finds := func(n int, at, kind string) (out []finding) {
		for i := range n {
			out = append(out, finding{at: at, kind: kind, file: at + "/f.go", line: i + 1, phrase: "old", use: "new"})
		}
		return out
	}
	recorded := counts{"a": {inComments: 2, "test-strings": 1}, "gone": {inComments: 1}}
	for name, test := range map[string]struct {
		found []finding
		want  []string // beginnings of the complaints
	}{
		"as recorded": {found: slices.Concat(finds(2, "a", inComments), finds(1, "a", "test-strings"), finds(1, "gone", inComments)), want: nil},
		"one more": {found: slices.Concat(finds(3, "a", inComments), finds(1, "a", "test-strings"), finds(1, "gone", inComments)),
			want: []string{"a: 3 phrases of our old dialect in its comments, at most 2", `a/f.go:1: "old"; write: new`, `a/f.go:2: "old"`, `a/f.go:3: "old"`}},
		"a new package": {found: slices.Concat(finds(2, "a", inComments), finds(1, "a", "test-strings"), finds(1, "gone", inComments), finds(1, "b", inStrings)),
			want: []string{"b: 1 phrases of our old dialect in its strings, at most 0", `b/f.go:1: "old"`}},
		"another kind": {found: slices.Concat(finds(2, "a", inComments), finds(1, "a", "test-strings"), finds(1, "gone", inComments), finds(1, "a", inStrings)),
			want: []string{"a: 1 phrases of our old dialect in its strings, at most 0", `a/f.go:1: "old"`}},
		"one less": {found: slices.Concat(finds(1, "a", inComments), finds(1, "a", "test-strings"), finds(1, "gone", inComments)),
			want: []string{"a: 1 phrases of our old dialect in its comments, and dialect.txt still allows 2; lower it: " + lowerCounts}},
		"a package without any": {found: slices.Concat(finds(2, "a", inComments), finds(1, "a", "test-strings")),
			want: []string{"gone: 0 phrases of our old dialect in its comments, and dialect.txt still allows 1; lower it: " + lowerCounts}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ratchet(recorded, test.found)
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
			if more := lowered(recorded, countOf(test.found)); name == "one more" || name == "a new package" {
				if more.String() != recorded.String() {
					t.Errorf("what would be written allows more:\n%s", more)
				}
			} else if left := ratchet(more, test.found); name != "another kind" && left != nil {
				t.Errorf("after writing, %q is left", left)
			}
		})
	}
	again, err := parseCounts(recorded.String())
	if err != nil || again.String() != recorded.String() {
		t.Errorf("%v; written and read it is\n%s", err, again)
	}
	if _, err := parseCounts("a comments=many\n"); err == nil {
		t.Error("a count that is no number is read")
	}
}
