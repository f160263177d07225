//go:build !race

package toolcall

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// register is a schema of n bits in a row: "a" and "b" move them by one, and "b" adds one, so that
// nearly each value within a value has another set of schemas.
func register(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/g","$defs":{"g":{"properties":{"a":{"$ref":"#/$defs/g"},"b":{"anyOf":[{"$ref":"#/$defs/g"},{"$ref":"#/$defs/0"}]}}}`)
	for i := range n {
		next := ""
		if i < n-1 {
			next = fmt.Sprintf(`"a":{"$ref":"#/$defs/%d"},"b":{"$ref":"#/$defs/%[1]d"}`, i+1)
		}
		fmt.Fprintf(&b, `,"%d":{"properties":{%s}}`, i, next)
	}
	return b.String() + `}}`
}

// TestSetsOfSchemasTakeLittleMemory: an answer may meet far more sets of schemas than a request has
// schemas, and what is kept of them stays until the answer ends.
func TestSetsOfSchemasTakeLittleMemory(t *testing.T) {
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	tools, err := ReadTools([]byte(`[{"type":"function","function":{"name":"f","parameters":` + register(31) + `}}]`))
	if err != nil {
		t.Fatal(err)
	}
	before, at := live(), tools["f"].shape
	for i := range 1 << 16 { // each path of 16 members
		s := at
		for bit := range 16 {
			if name := "a"; i>>bit&1 == 0 {
				s = s.member(name)
			} else {
				s = s.member("b")
			}
		}
	}
	if grown, counted := live()-before, ShapesBytes(100); grown > 2*counted {
		t.Errorf("%d KiB are kept of the sets of schemas, %d are counted", grown>>10, counted>>10)
	}
	if first := at.member("a"); !first.declares("b") {
		t.Error("what was looked up first is forgotten")
	}
	runtime.KeepAlive(tools)
}
