package engine

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/ref"
)

// lists makes requests of a tenant for some inputs of as many tokens each.
func lists(t *testing.T) func(tenant string, inputs, tokens int) *embedding {
	p := readerInput(t, "qwen3 embed")
	return func(tenant string, inputs, tokens int) *embedding {
		in, err := p.conventions.Tokens(p.tok, make([]int32, tokens-1), embed.Options{}) // and one after them
		if err != nil || in.Len() != tokens {
			t.Fatalf("%d tokens, want %d: %v", in.Len(), tokens, err)
		}
		return &embedding{tenant: tenant, inputs: slices.Repeat([]embed.Tokenized{in}, inputs)}
	}
}

// TestAttackLongListsOfTexts: lists whose texts fill a pass each delay neither another
// tenant nor a short request of their own.
func TestAttackLongListsOfTexts(t *testing.T) {
	b, listOf := ref.New(ref.Options{}), lists(t)
	full := embed.PassTokens(b)
	l := &embedLoop{shared: &shared{opts: Options{Backend: b}}, model: &loadedModel{embedder: &embed.Model{}}}
	for range 8 {
		l.enter(listOf("hog", 100, full))
	}
	passes := func(r *embedding) (n int) {
		for ; r.begun < len(r.inputs); n++ {
			if n > 1000 {
				t.Fatal("it is never computed")
			}
			for _, in := range l.pass() {
				in.done()
			}
		}
		return n
	}
	l.enter(listOf("hog", 1, 10))
	if n := passes(l.requests[8]); n > 10 {
		t.Errorf("a short request of the same tenant waits %d passes", n)
	}
	l.enter(listOf("other", 5, full))
	if n := passes(l.requests[9]); n > 10 {
		t.Errorf("5 inputs of another tenant take %d passes, want every second one", n)
	}
	l.leave(9)
	l.enter(listOf("other", 20, full/10)) // two of which fill what a long one leaves
	if n := passes(l.requests[9]); n > 10 {
		t.Errorf("20 short inputs of another tenant take %d passes", n)
	}
}

func TestATenantThatComesLaterHasNoMoreThanItsShare(t *testing.T) {
	var e embedTurns
	listOf := lists(t)
	early, late := listOf("early", 200, 1), listOf("late", 200, 1)
	step := func() {
		e.begin()
		e.next().take().done()
	}
	e.enter(early)
	for range 50 {
		step()
	}
	e.enter(late)
	for range 100 {
		step()
	}
	if early.begun != 100 || late.begun != 50 {
		t.Errorf("%d inputs of the early tenant and %d of the late one are computed, want 100 and 50", early.begun, late.begun)
	}
	e.leave(0)
	e.leave(0)
	if len(e.requests)+len(e.tenants) != 0 {
		t.Errorf("%d requests and %d tenants stay", len(e.requests), len(e.tenants))
	}
}

// A list gets its share, and no more, next to more short texts than a pass takes, each of which is followed
// by another, whether they are of other tenants or of its own.
func TestAListGetsItsShareNextToTextsThatComeAndGo(t *testing.T) {
	for _, others := range []string{"tenant", "tenant %d"} {
		for _, length := range []int{2, 100} {
			testShareOfAList(t, others, length)
		}
	}
}

// testShareOfAList computes passes of a list of texts of this length next to shorter ones.
func testShareOfAList(t *testing.T, others string, length int) {
	const short, inPass, passes = 8, 4, 1000
	var e embedTurns
	listOf := lists(t)
	list := listOf("tenant", inPass*passes, length)
	e.enter(list)
	begin := func(tenant string) { e.enter(listOf(tenant, 1, 10)) }
	for i := range short {
		begin(strings.ReplaceAll(others, "%d", strconv.Itoa(i)))
	}
	all := 0
	for range passes {
		e.begin()
		var pass []passInput
		for range inPass {
			pass = append(pass, e.next().take())
		}
		for _, in := range pass {
			in.done()
			all += in.tokens()
		}
		for _, in := range pass {
			if in.of != list {
				e.leave(slices.Index(e.requests, in.of))
				begin(in.of.tenant)
			}
		}
	}
	if got, share := length*list.begun, all/(short+1); got < share/2 || got > 3*share/2 {
		t.Errorf("next to texts of %q: %d of %d tokens are of the list of texts of %d, want about %d", others, got, all, length, share)
	}
}
