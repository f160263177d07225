package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// vocabularyOf has n tokens: all bytes, and words of random letters, half of them with
// a blank in front.
func vocabularyOf(n int) (*Vocabulary, [][]byte) {
	const letters = "etaoinshrdlucmfwypvbgkjqxz"
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	known := map[string]bool{}
	var tokens [][]byte
	for len(tokens) < n {
		word := []byte{byte(len(tokens))}
		if len(tokens) > 255 {
			word = []byte(" ")[:rng.IntN(2)]
			for range 2 + rng.IntN(9) {
				word = append(word, letters[rng.IntN(1+rng.IntN(len(letters)))])
			}
		}
		if !known[string(word)] {
			known[string(word)] = true
			tokens = append(tokens, word)
		}
	}
	return NewVocabulary(n, func(id int32) []byte { return tokens[id] }), tokens
}

// emptyChain are rules of which each may be empty because the next may.
func emptyChain(n int) string {
	var b strings.Builder
	b.WriteString("root::=\"x\"|\"y\" a0\n")
	for i := range n {
		fmt.Fprintf(&b, "a%d::=a%d|\"x\"\n", i, i+1)
	}
	fmt.Fprintf(&b, "a%d::=\"\"\n", n)
	return b.String()
}

// listOf is a schema of n values.
func listOf(n int) string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf(`"value %d"`, i)
	}
	return `{"enum":[` + strings.Join(values, ",") + `]}`
}

// patterns are n members whose texts have an expression each.
func patterns(n int, format string) string {
	members := make([]string, n)
	for i := range members {
		members[i] = fmt.Sprintf(`"p%d":{"type":"string","pattern":"`+format+`"}`, i, i)
	}
	return `{"type":"object","properties":{` + strings.Join(members, ",") + `}}`
}

const fiveAlternatives = `root::=""|[a-f] root "a"|[a-f] root "b"|[g-z ] root "c"|[g-z ] root "d"`

// compiled returns the work that a constraint took.
func compiled(ctx context.Context, s Spec) (*Grammar, int64, error) {
	m := newMeter(ctx, nil)
	g, err := compile(m, s)
	return g, compileWork - m.left, err
}

// endsAt is over at its n-th look.
type endsAt struct {
	context.Context
	looks, n int
}

func (c *endsAt) Err() error {
	if c.looks++; c.looks >= c.n {
		return context.Canceled
	}
	return nil
}

func TestWorkEndsWithItsContext(t *testing.T) {
	const looks = 3
	ctx := &endsAt{Context: t.Context(), n: looks}
	_, work, err := compiled(ctx, Spec{Kind: Regex, Source: strings.Repeat(".?", 3500)})
	if most := int64((looks + 1) * 10 * sliceWork); !errors.Is(err, context.Canceled) || work > most {
		t.Errorf("compiling: %v after %d units of work, want at most %d", err, work, most)
	}
	g, _, err := compiled(t.Context(), Spec{Kind: EBNF, Source: fiveAlternatives})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := vocabularyOf(20_000)
	m := NewTable(g, v).Match(false)
	before := m.account.left
	ctx = &endsAt{Context: t.Context(), n: looks}
	_, err = m.Mask(ctx)
	if spent, most := before-m.account.left, int64((looks+1)*2*sliceWork); !errors.Is(err, context.Canceled) || spent > most {
		t.Errorf("a mask: %v after %d units of work, want at most %d", err, spent, most)
	}
}

func TestReadingJSONEndsWithItsContext(t *testing.T) {
	const looks = 3
	for _, source := range []string{listed("1", 100_000), listed(`"a"`, 60_000), listed("[]", 80_000), listed("{}", 80_000), `{` + listedNames(20_000) + `}`} {
		m := newMeter(&endsAt{Context: t.Context(), n: looks}, nil)
		_, err := parseValue(m, "["+source+"]")
		if work, most := compileWork-m.left, int64((looks+1)*sliceWork); !errors.Is(err, context.Canceled) || work > most {
			t.Errorf("JSON of %.9s: %v after %d units of work, want at most %d", source, err, work, most)
		}
	}
}

// TestExpressionsEndWhereverTheBudgetDoes: also where it has no room for the first state.
func TestExpressionsEndWhereverTheBudgetDoes(t *testing.T) {
	for _, source := range []string{"a", "^a", "a$", "(a|b)*c{2,3}", "[a-f]"} {
		for _, anchored := range []bool{true, false} {
			ends := errors.New("the budget has run out")
			for n := int64(0); n < 10_000 && ends != nil; n++ {
				m := newMeter(t.Context(), nil)
				m.left, m.floor, m.next, m.exceeded = n, 0, 0, ends
				if _, err := parseRegular(m, source, "pattern", anchored); err == nil {
					ends = nil
				} else if !errors.Is(err, ends) {
					t.Fatalf("%q with a budget of %d: %v", source, n, err)
				}
			}
			if ends != nil {
				t.Errorf("%q does not end", source)
			}
		}
	}
}

func TestAttackAMaskOverTheBudgetEndsTheAnswer(t *testing.T) {
	v, tokens := vocabularyOf(20_000)
	for name, source := range map[string]string{
		"five alternatives": fiveAlternatives,
		"rules that read the same": "root::=x0|x1|x2\nx0::=[a-z ] x1 [a-z]|[a-z ] x2 [a-m]|\"z\"\n" +
			"x1::=[a-z ] x2 [a-z]|[a-z ] x0 [a-m]|\"z\"\nx2::=[a-z ] x0 [a-z]|[a-z ] x1 [a-m]|\"z\"",
	} {
		t.Run(name, func(t *testing.T) {
			g, _, err := compiled(t.Context(), Spec{Kind: EBNF, Source: source})
			if err != nil {
				t.Fatal(err)
			}
			m := NewTable(g, v).Match(false)
			// No token spends more than the account has.
			for token := range 200 {
				before := m.account.left + m.account.token
				mask, err := m.Mask(t.Context())
				if spent := before - m.account.left; spent > answerWork+m.account.token+4*maxItems {
					t.Fatalf("token %d took %d units of work", token, spent)
				}
				if errors.Is(err, ErrWork) || errors.Is(err, ErrAmbiguous) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if id := slices.IndexFunc(tokens, func(text []byte) bool {
					return text[0] >= 'a' && len(text) == 2 && Allows(mask, int32(slices.IndexFunc(tokens, func(o []byte) bool { return string(o) == string(text) })))
				}); id < 0 || !m.Advance(tokens[id]) {
					t.Fatalf("token %d: no word may follow", token)
				}
			}
			t.Error("the answer does not end")
		})
	}
}

// Twice as much takes at most a little more than twice the work.
func TestCompilingTakesWorkInProportionToTheConstraint(t *testing.T) {
	for name, of := range map[string]func(n int) Spec{
		"empty rules":   func(n int) Spec { return Spec{Kind: EBNF, Source: emptyChain(n)} },
		"listed values": func(n int) Spec { return schema(listOf(n)) },
		"members":       func(n int) Spec { return schema(patterns(n, "x%d")) },
		"optional rules": func(n int) Spec {
			return Spec{Kind: EBNF, Source: "root::=" + strings.Repeat("w ", n) + "\nw::=[a-z ]?"}
		},
		"required values": func(n int) Spec {
			return schema(`{"type":"array","prefixItems":[` + strings.TrimSuffix(strings.Repeat(`{"const":1},`, n), ",") + `]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, once, err := compiled(t.Context(), of(500))
			if err != nil {
				t.Fatal(err)
			}
			_, twice, err := compiled(t.Context(), of(1000))
			if err != nil {
				t.Fatal(err)
			}
			if 10*twice > 22*once {
				t.Errorf("%d units of work, and %d for twice as much", once, twice)
			}
		})
	}
}

func TestOrdinaryConstraintsStayFarBelowTheirBudgets(t *testing.T) {
	v, tokens := vocabularyOf(20_000)
	for name, s := range map[string]Spec{
		"any object":   {Kind: JSONObject},
		"a schema":     schema(`{"type":"object","properties":{"summary":{"type":"string","maxLength":400},"score":{"type":"number","minimum":0,"maximum":1}},"required":["summary","score"],"additionalProperties":false}`),
		"a URI":        schema(`{"type":"string","format":"uri"}`),
		"an address":   schema(`{"type":"string","format":"email"}`),
		"a pattern":    schema(`{"type":"string","pattern":"^\\w+( \\w+)*$","maxLength":200}`),
		"3,000 values": schema(listOf(3000)),
		"sentences":    {Kind: Regex, Source: `([A-Z][a-z]+ ){1,50}[A-Z][a-z]+\.`},
		"arithmetic":   {Kind: EBNF, Source: "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\" | [a-z] [a-z0-9]*"},
	} {
		t.Run(name, func(t *testing.T) {
			g, work, err := compiled(t.Context(), s)
			if err != nil || work > compileWork/8 {
				t.Fatalf("compiling takes %d units of %d: %v", work, compileWork, err)
			}
			m := NewTable(g, v).Match(false)
			rng := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				mask, err := m.Mask(t.Context())
				if err != nil || m.account.left < answerWork/2 {
					t.Fatalf("%d units of %d are left: %v", m.account.left, answerWork, err)
				}
				var may []int32
				for id := range int32(len(tokens)) {
					if Allows(mask, id) {
						may = append(may, id)
					}
				}
				if len(may) == 0 {
					return
				}
				m.Advance(tokens[may[rng.IntN(len(may))]])
			}
		})
	}
}

// full has all places of a cache's lane taken by others.
func full(t *testing.T) *Cache {
	t.Helper()
	_, tokens := bytesAlone(words...)
	c := NewCache(len(tokens), func(id int32) []byte { return tokens[id] }, 1<<20)
	for c.processors.Free() > 0 {
		if err := c.processors.Take(t.Context(), "others"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestAttackAConstraintThatTakesLongHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := full(t)
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error)
		for i := range 2 * maxHeavy {
			go func() {
				_, _, err := c.Table(ctx, "", Spec{Kind: Regex, Source: strings.Repeat(".?", 2000+i)})
				ended <- err
			}()
		}
		synctest.Wait()
		if n := maxHeavy - c.heavy.Free(); n != maxHeavy {
			t.Errorf("%d constraints take long at once, want %d", n, maxHeavy)
		}
		table, release, err := c.Table(t.Context(), "", Spec{Kind: JSONObject})
		if err != nil {
			t.Fatal(err)
		}
		m := table.Match(false)
		if _, err := m.Mask(t.Context()); err != nil {
			t.Error(err)
		}
		release()
		leave()
		for range 2 * maxHeavy {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a client that left got %v", err)
			}
		}
		if heavy, mine := maxHeavy-c.heavy.Free(), c.processors.Taken(""); heavy != 0 || mine != 0 || c.processors.Free() != 0 || len(c.compiling) != 0 {
			t.Errorf("%d heavy places and %d processors are taken, %d constraints are compiled", heavy, mine, len(c.compiling))
		}
	})
}

// A tenant with many constraints that take long does not keep another's waiting.
func TestTenantsTakeTurnsAtConstraintsThatTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := full(t)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		ended := make(chan string, 100)
		compile := func(tenant string, i int) {
			go func() {
				if _, release, err := c.Table(ctx, tenant, Spec{Kind: Regex, Source: strings.Repeat("a?", 250+i)}); err == nil {
					release()
					ended <- tenant
				}
			}()
			synctest.Wait()
		}
		for i := range 3 * maxHeavy {
			compile("hog", i)
		}
		if n := c.heavy.Taken("hog"); n != maxHeavy {
			t.Errorf("a tenant alone has %d places of %d", n, maxHeavy)
		}
		compile("victim", 0)
		for range c.processors.Taken("others") {
			c.processors.Give("others")
		}
		synctest.Wait()
		for before := 0; ; before++ {
			if tenant := <-ended; tenant == "victim" {
				if before > maxHeavy+1 { // those with a place, and one whose turn came first
					t.Errorf("%d constraints of another tenant were compiled first", before)
				}
				return
			}
		}
	})
}

func TestOneConstraintOfManyRequestsIsCompiledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := full(t)
		ctx, leave := context.WithCancel(t.Context())
		s := Spec{Kind: Regex, Source: strings.Repeat("a?", 250)}
		left, tables := make(chan error), make(chan *Table)
		go func() {
			_, _, err := c.Table(ctx, "", s)
			left <- err
		}()
		synctest.Wait()
		for range 3 {
			go func() {
				table, release, err := c.Table(t.Context(), "", s)
				if err != nil {
					t.Error(err)
				} else {
					release()
				}
				tables <- table
			}()
		}
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the first client, which left, got %v", err)
		}
		c.processors.Give("others")
		if a, b, c := <-tables, <-tables, <-tables; a == nil || a != b || b != c {
			t.Errorf("tables %p, %p and %p, want one", a, b, c)
		}
	})
}

func TestTryNeverWaitsAndLosesNothing(t *testing.T) {
	tab := table(t, Spec{Kind: EBNF, Source: "root::=" + strings.Repeat("[a-z ]? ", 900)})
	m := tab.Match(false)
	tab.held <- struct{}{}
	if ok, err := m.Try([]byte("a")); ok || !errors.Is(err, ErrLate) {
		t.Errorf("while the table is in use: %v, %v", ok, err)
	}
	<-tab.held
	text := []byte(strings.Repeat("abcdefghijklmnopqrstuvwxyz ", 3))
	tries := 0
	for {
		ok, err := m.Try(text)
		if ok {
			break
		}
		if tries++; !errors.Is(err, ErrLate) || tries > 100 {
			t.Fatalf("try %d: %v, %v", tries, ok, err)
		}
	}
	if tries == 0 {
		t.Error("what takes long was done at once")
	}
	n := tab.Match(false)
	if ok, err := n.Follow(t.Context(), text); !ok || err != nil || n.s != m.s {
		t.Errorf("followed without trying: %v, %v", ok, err)
	}
}

func TestAMaskIsTheSameWhereverItIsMade(t *testing.T) {
	v, _ := vocabularyOf(20_000)
	g, _, err := compiled(t.Context(), Spec{Kind: Regex, Source: `(\w+[ ,]){1,40}(a|b)*a(a|b){6}`})
	if err != nil {
		t.Fatal(err)
	}
	alone := NewTable(g, v).Match(false)
	want, err := alone.Mask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := newTable(g, v, &lane{turns: newProcessors()}).Match(false)
	m.account.quick = 0
	for tries := 1; ; tries++ { // interrupted at each look, and begun again
		got, err := m.Mask(&endsAt{Context: t.Context(), n: tries})
		if errors.Is(err, context.Canceled) {
			continue
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("after %d tries: another mask, %v", tries, err)
		}
		if tries == 1 {
			t.Error("it was not interrupted")
		}
		return
	}
}

// What masks take is charged to the answer: it ends when they take more than its tokens
// bring, and never where they take less.
func TestAnAnswerPaysForItsMasks(t *testing.T) {
	v, _ := vocabularyOf(300)
	masks := func(of func(a *account) int64) (n int, err error) {
		a := newAccount(v)
		for n = range 1000 {
			a.credit()
			m := a.meter(t.Context(), nil)
			for left := of(a); left > 0 && m.err == nil; left -= sliceWork {
				m.spend(sliceWork)
			}
			a.settle(m)
			if m.err != nil {
				return n, m.err
			}
		}
		return n, nil
	}
	if n, err := masks(func(a *account) int64 { return a.token / 2 }); err != nil {
		t.Errorf("cheap masks end the answer at token %d: %v", n, err)
	}
	n, err := masks(func(a *account) int64 { return a.token + answerWork/50 })
	if !errors.Is(err, ErrWork) || n < 45 || n > 55 {
		t.Errorf("masks that take a fiftieth of the budget more than their tokens bring end the answer at token %d: %v", n, err)
	}
}

// A row of question marks makes no tree of repetitions: emit recurses over it, and its stack
// would be memory that nothing bounds, held while the constraint waits for its turn.
func TestAttackARowOfRepetitions(t *testing.T) {
	for name, row := range map[string]string{"?": "?", "*?": "*?", "+?": "+?"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := compiled(t.Context(), Spec{Kind: EBNF, Source: `root ::= "a"` + strings.Repeat(row, 250_000/len(row))})
		runtime.ReadMemStats(&after)
		if err != nil && !errors.Is(err, errLimit) {
			t.Errorf("%s: %v", name, err)
		}
		if grown := int64(after.StackInuse) - int64(before.StackInuse); grown > 4<<20 {
			t.Errorf("%s: the stack grew by %d MiB", name, grown>>20)
		}
	}
	g, _, err := compiled(t.Context(), Spec{Kind: EBNF, Source: `root ::= "a"??*??`})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := vocabularyOf(300)
	for text, want := range map[string]bool{"": true, "a": true, "aa": true, "b": false} {
		if got := accepts(NewTable(g, v), text); got != want {
			t.Errorf("%q is accepted: %v", text, got)
		}
	}
}
