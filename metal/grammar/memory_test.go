package grammar

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// listed is n times a part, separated by commas.
func listed(part string, n int) string {
	return strings.TrimSuffix(strings.Repeat(part+",", n), ",")
}

// references are schemas of which each refers to the next, with no value in between.
func references(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/x-/1","x-":[0`)
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, `,{"$ref":"#/x-/%d"}`, i+1)
	}
	b.WriteString(`,{}]}`)
	return b.String()
}

// TestAttackASourceIsCompiledToManyTimesItsBytes: what a constraint allocates while it is
// compiled does not depend on how long its names are, and what is kept of it is bounded.
func TestAttackASourceIsCompiledToManyTimesItsBytes(t *testing.T) {
	long := strings.Repeat("~", 60<<10)
	under := func(keyword string, n int) Spec {
		return schema(`{"$ref":"#/$defs/` + long + `","$defs":{"` + long + `":{"` + keyword + `":[` + listed(`{}`, n) + `]}}}`)
	}
	for _, c := range []struct {
		name string
		spec Spec
		most int // MiB that are allocated in all
	}{
		{"alternatives under a long name", under("anyOf", 12_000), 32},
		{"items under a long name", under("prefixItems", 12_000), 96},
		{"members under a long name", schema(`{"$ref":"#/$defs/` + long + `","$defs":{"` + long + `":` + patterns(1500, "%d") + `}}`), 96},
		{"references in a row", schema(references(10_900)), 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, work, err := compiled(t.Context(), c.spec)
			runtime.ReadMemStats(&after)
			if err != nil && !errors.Is(err, errLimit) {
				t.Error(err)
			}
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%d bytes: %d MiB, %d units of work, %v", len(c.spec.Source), allocated, work, err)
			if allocated > uint64(c.most) {
				t.Errorf("%d MiB are allocated for %d bytes, want at most %d", allocated, len(c.spec.Source), c.most)
			}
			if most := int64(compileWork + 10*sliceWork); work > most {
				t.Errorf("%d units of work, want at most %d", work, most)
			}
		})
	}
}
