package openai

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func ignoredIn(t *testing.T, body string) []string {
	t.Helper()
	var d Decoder
	if _, err := d.Chat([]byte(body)); err != nil {
		t.Fatalf("%.200s: %v", body, err)
	}
	return d.Ignored()
}

func TestIgnoredFieldsAreNamedOncePerPlace(t *testing.T) {
	got := ignoredIn(t, `{"model":"m","messages":[
		{"role":"system","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b","cache_control":{}}]},
		{"role":"user","content":"hi","id":"1"},{"role":"user","content":"hi","id":"2"}],"metadata":{"a":"b"},"a[3]":1,"b[]":1,"c[":1}`)
	want := []string{"messages[].content[].cache_control", "messages[].id", "metadata", "a[]", "b[]", "c["}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestNamesOfIgnoredFieldsFitIntoAHeader(t *testing.T) {
	got := ignoredIn(t, chatBody(`"a, b\r\nX-Evil: \"1\"":1,"é":1,"`+strings.Repeat("x", 1<<20)+`":1`))
	want := []string{"a??b??X-Evil:??1?", "?", strings.Repeat("x", 64) + "..."}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	var many, long strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `"field_%d":1,`, i)
		fmt.Fprintf(&long, `"%060d":1,`, i)
	}
	got = ignoredIn(t, chatBody(strings.TrimSuffix(many.String(), ",")))
	if len(got) != 21 || got[20] != "..." || got[19] != "field_19" {
		t.Errorf("%d names: %q", len(got), got)
	}
	got = ignoredIn(t, chatBody(strings.TrimSuffix(long.String(), ",")))
	if n := len(strings.Join(got, ", ")); n > 1024 || n < 900 || got[len(got)-1] != "..." {
		t.Errorf("%d bytes in %d names", n, len(got))
	}
}

// A name of an ignored field costs what its bytes cost, however many brackets it has.
func TestAttackANameOfManyBrackets(t *testing.T) {
	const size = 192 << 10
	fastest := func(unit string) time.Duration {
		least, name := time.Duration(math.MaxInt64), strings.Repeat(unit, size/len(unit))
		for range 3 {
			began := time.Now()
			ignoredIn(t, chatBody(`"`+name+`":1`))
			least = min(least, time.Since(began))
		}
		return least
	}
	plain := fastest("a")
	for _, unit := range []string{"[", "[1", "[1]", "[1][", "]", "[]"} {
		if ratio := float64(fastest(unit)) / float64(plain); ratio > 20 {
			t.Errorf("a name of %q takes %.0f times as long as one of letters", unit, ratio)
		}
	}
}
