//go:build !race

package weights

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestModulesAreReadByKindAndFolder(t *testing.T) {
	got, err := Modules([]byte(`[{"idx":0,"path":"","type":"sentence_transformers.models.Transformer"},{"path":"1_Pooling","type":"sentence_transformers.models.Pooling"},{"path":"norm","type":"Normalize"}]`))
	want := []Module{{Kind: "Transformer"}, {Kind: "Pooling", Path: "1_Pooling"}, {Kind: "Normalize", Path: "norm"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
	if got[0].ConfigPath() != "" || got[1].ConfigPath() != "1_Pooling/config.json" {
		t.Errorf("configurations at %q and %q", got[0].ConfigPath(), got[1].ConfigPath())
	}
}

// TestAttackModulesThatLeaveTheFolder: a list from outside names folders that
// are made on this Mac.
func TestAttackModulesThatLeaveTheFolder(t *testing.T) {
	for _, path := range []string{"..", ".", "../up", "/etc", "a/b", "a/", `a\b`, "a\x00b", "a\x1bb", ".hidden", strings.Repeat("x", 65)} {
		if got, err := Modules(fmt.Appendf(nil, `[{"type":"Pooling","path":%s}]`, quotedJSON(path))); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q is taken: %+v, %v", path, got, err)
		}
	}
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"type":"a","path":"b"},`, maxModules+1), ",") + "]"
	for name, text := range map[string]string{"no list": `{}`, "no JSON": `[`, "too many": many, "too long": "[" + strings.Repeat(" ", MaxModulesBytes) + "]", "folders that are numbers": `[{"path":3}]`} {
		if got, err := Modules([]byte(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func quotedJSON(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return b.String() + `"`
}
