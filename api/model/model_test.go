//go:build !race

package model

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func file(path string) File {
	return File{Path: path, Bytes: 7, SHA256: strings.Repeat("ab", 32)}
}

func TestDigestNamesContentNotOrder(t *testing.T) {
	a, b := file("a"), file("b")
	if DigestOf([]File{a, b}) != DigestOf([]File{b, a}) {
		t.Error("the digest depends on the order of the files")
	}
	c := b
	c.Bytes++
	if DigestOf([]File{a, b}) == DigestOf([]File{a, c}) {
		t.Error("the digest does not depend on the size")
	}
}

func TestRecordValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		files  []File
		digest string
		want   string
	}{
		"a good record passes":               {files: []File{file("m.gguf")}},
		"no files is incomplete":             {want: "no files"},
		"a path that climbs out is refused":  {files: []File{file("../m.gguf")}, want: "outside the model's folder"},
		"an absolute path is refused":        {files: []File{file("/etc/m")}, want: "outside the model's folder"},
		"a foreign digest is refused":        {files: []File{file("m")}, digest: "sha256:00", want: "does not match"},
		"names that differ in case alone":    {files: []File{file("a/B.jinja"), file("A/b.jinja")}, want: "one file on a Mac's disk; rename"},
		"a size of zero is incomplete":       {files: []File{{Path: "m", SHA256: strings.Repeat("ab", 32)}}, want: "size or digest"},
		"a digest that is no hex is refused": {files: []File{{Path: "m", Bytes: 1, SHA256: "zz"}}, want: "size or digest"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Record{Files: tc.files, Digest: tc.digest}
			if r.Digest == "" {
				r.Digest = DigestOf(tc.files)
			}
			err := r.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestFactsNameWhatIsMissing(t *testing.T) {
	err := Facts{Architecture: "llama", Layers: 2}.Validate()
	if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "headSize") || strings.Contains(err.Error(), "unknown layers") {
		t.Errorf("got %v", err)
	}
}

func TestAdaptersShareCredentialsWithTheModelsServerAlone(t *testing.T) {
	for _, c := range []struct {
		model, adapter string
		shared         bool
	}{
		{"hf://a/b", "hf://c/d", true},
		{"hf://a/b", "oci://h/r:t", false},
		{"hf://a/b", "s3://b/x", false},
		{"file://a", "hf://a/b", false},
		{"file://a", "file://b", false},
		{"https://h/m.gguf", "hf://a/b", false},
		{"oci://h/r:t", "oci://h/other:t", true},
		{"oci://h/r:t", "oci://evil/r:t", false},
		{"oci://h/r:t", "oci://h.evil/r:t", false},
		{"s3://b/x", "s3://c/y", true},
		{"s3://b/x?endpoint=https://h", "s3://c/y?endpoint=https://h", true},
		{"s3://b/x?endpoint=https://h", "s3://c/y", false},
		{"s3://b/x", "s3://c/y?endpoint=https://evil", false},
		{"s3://b/x?region=r", "s3://c/y?region=r&endpoint=https://evil", false},
	} {
		if got := (Adapter{Source: c.adapter}).Shared(c.model); got != c.shared {
			t.Errorf("an adapter from %s with a model from %s: shared %v", c.adapter, c.model, got)
		}
	}
}

// TestNamesThatAMacTakesForOneClash: its disk ignores case and normalization.
func TestNamesThatAMacTakesForOneClash(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"config.json", "Config.JSON", true},
		{"config.json", "config.jsonl", false},
		{"a/b", "a/c", false},
		{"a/b", "b", false},
		{"caf\u00e9", "cafe\u0301", true},        // composed and decomposed
		{"caf\u00c9", "cafe\u0301", true},        // and in upper case
		{"\uac00", "\u1100\u1161", true},         // Hangul
		{"\u212a.json", "k.json", true},          // the sign of Kelvin
		{"\u017f.json", "S.json", true},          // the long s
		{"stra\u00dfe", "STRASSE", true},         // sharp s
		{"e\u0323\u0301", "e\u0301\u0323", true}, // the order of marks
		{"a\u00e9/x", "a/x", false},
		{"\u0301/x", "y/\u0301", false},
	} {
		if a, b, found := Clash([]string{"other", c.a, c.b}); found != c.want || found && (a != c.a || b != c.b) {
			t.Errorf("%+q and %+q: %v, %+q, %+q", c.a, c.b, found, a, b)
		}
	}
}

// TestSizesOfARecordDoNotWrapAround: a Mac that was taken over reports any, and limits of a namespace
// count them.
func TestSizesOfARecordDoNotWrapAround(t *testing.T) {
	large := []File{{Path: "a", Bytes: math.MaxInt64}, {Path: "b", Bytes: math.MaxInt64}}
	r := Record{Files: large, Adapters: []Adapter{{Files: large}, {Files: large}}}
	for name, n := range map[string]int64{"model": r.Bytes(), "adapters": r.AdapterBytes(), "all": r.DiskBytes()} {
		if n != math.MaxInt64 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}
