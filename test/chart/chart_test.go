package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASentenceEnds(t *testing.T) {
	for text, want := range map[string]bool{
		"spec is the desired state.": true, "how many (at most 8)": true, "a name": false, "": false, "x.": false, "  ": false,
		"key: value, as in `a`": true,
	} {
		if got := told(text); got != want {
			t.Errorf("%q is told: %v", text, got)
		}
	}
}

// TestAFieldWithoutASentenceIsNamed, wherever it hides.
func TestAFieldWithoutASentenceIsNamed(t *testing.T) {
	dir := t.TempDir()
	kind := `
spec:
  names: {singular: thing}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        properties:
          spec:
            description: spec is told.
            properties:
              mute: {type: string}
              list:
                description: list is told.
                items: {properties: {deep: {description: no end}}}
              map:
                description: map is told.
                additionalProperties: {properties: {inside: {}}}
`
	if err := os.WriteFile(filepath.Join(dir, "thing.yaml"), []byte(kind), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := sentences(dir)
	for _, name := range []string{"3 fields", "thing.spec.mute", "thing.spec.list[].deep", "thing.spec.map{}.inside"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %s named", err, name)
		}
	}
	if _, err := sentences(t.TempDir()); err == nil {
		t.Error("a folder without kinds is fine")
	}
}

// TestEveryKindIsTold: kubectl explain shows a sentence for each field.
func TestEveryKindIsTold(t *testing.T) {
	if said, err := sentences("../../config/crd"); err != nil {
		t.Error(err)
	} else {
		t.Log(said)
	}
}

// TestTheChartCarriesWhatWasGenerated: kinds and rights are not written twice.
func TestTheChartCarriesWhatWasGenerated(t *testing.T) {
	if _, err := copies("../.."); err != nil {
		t.Error(err)
	}
}

func TestRenderedTextIsCutIntoObjects(t *testing.T) {
	objects, err := parse([]byte("---\n# Source: a\nkind: A\nmetadata: {name: a}\n---\n# nothing\n---\nkind: B\n"))
	if err != nil || len(objects) != 2 || objects[0].GetKind() != "A" || objects[1].GetKind() != "B" {
		t.Errorf("%v, %v", objects, err)
	}
	if _, err := parse([]byte("kind: A\nkind: B\n")); err == nil {
		t.Error("a key that comes twice is taken")
	}
}
