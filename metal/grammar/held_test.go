//go:build !race

package grammar

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// readings are a grammar with two ways to read each of some letters, each with its own return
// address, and then a rule; i makes it one of its own.
func readings(levels int, letter, rule string, i int) Spec {
	var b strings.Builder
	b.WriteString("root ::= s0\n")
	for n := range levels {
		fmt.Fprintf(&b, "s%d ::= %s s%d \"b\" | %s s%d \"c\"\n", n, letter, n+1, letter, n+1)
	}
	fmt.Fprintf(&b, "s%d ::= t0\n%s\n# %d\n", levels, rule, i)
	return Spec{Kind: EBNF, Source: b.String()}
}

// TestTheStatesOfAnswersCountOnceTheirTableForgotThem: the return addresses that an answer holds
// are in the account of its cache also when the table has dropped its states, and have a bound.
func TestTheStatesOfAnswersCountOnceTheirTableForgotThem(t *testing.T) {
	const deep = `t0 ::= "Q" t0 "." | "z"+`
	var chain strings.Builder
	for i := range 90 {
		fmt.Fprintf(&chain, "t%d ::= t%d \".\"\n", i, i+1)
	}
	chain.WriteString(`t90 ::= "z"+`)
	for _, c := range []struct {
		name string
		spec func(i int) Spec
		text string
	}{
		{"deep after a text", func(i int) Spec { return readings(9, `"a"`, deep, i) }, strings.Repeat("a", 9) + strings.Repeat("Q", 235) + "zz"},
		{"at the start", func(i int) Spec { return readings(4, ``, chain.String(), i) }, "zz"},
		{"few ways", func(i int) Spec { return readings(9, `"a"`, deep, i) }, "aaa"},
	} {
		t.Run(c.name, func(t *testing.T) { testStatesOfAnswers(t, c.spec, c.text) })
	}
}

// testStatesOfAnswers follows a text with constraints of their own, and lets their tables forget.
func testStatesOfAnswers(t *testing.T, spec func(i int) Spec, text string) {
	_, tokens := bytesAlone(words...)
	cache := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 48<<20)
	const n = 32
	var answers [n]Matcher
	var releases [n]func()
	base := int64(0)
	for i := range n {
		table, release, err := cache.Table(t.Context(), fmt.Sprint(i%2), spec(i))
		if err != nil {
			t.Fatal(err)
		}
		answers[i], releases[i] = table.Match(false), release
		if i == 0 { // with the vocabulary
			base = heap() - cache.Bytes()
		}
		for _, b := range []byte(text) {
			if ok, err := answers[i].Follow(t.Context(), []byte{b}); err != nil && !errors.Is(err, ErrAmbiguous) {
				t.Fatalf("%c: %v, %v", b, ok, err)
			} else if err != nil {
				break
			}
		}
	}
	check := func(when string, most int64) {
		t.Helper()
		live, counted := heap()-base, cache.Bytes()
		t.Logf("%s: %d KiB of the heap, %d KiB are counted", when, live>>10, counted>>10)
		if live > counted+1<<20 || counted > most {
			t.Errorf("%s: the constraints take %d KiB, and count %d", when, live>>10, counted>>10)
		}
	}
	check("while followed", 48<<20)
	for i := range answers {
		answers[i].t.forget()
	}
	check("forgotten", n<<20)
	for i := range answers {
		_, _ = answers[i].Mask(t.Context())
	}
	check("found again", 48<<20)
	for i, release := range releases {
		answers[i].Release()
		release()
		answers[i].s = nil
	}
	check("idle", n<<20)
	for i := range answers {
		answers[i].t.forget()
	}
	check("idle and forgotten", n<<20)
	if cache.states.Load() != 0 {
		t.Errorf("%d bytes of states are in use after the last answer", cache.states.Load())
	}
	runtime.KeepAlive(&answers)
}
