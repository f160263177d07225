package constraint

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer/tokenizertest"
)

// under is the state of an answer that must match an expression.
func under(t *testing.T, expression string, dropFirst bool, th text.Thinking) *State {
	t.Helper()
	return inForm(t, grammar.Spec{Kind: grammar.Regex, Source: expression}, dropFirst, th)
}

// inForm is the state of an answer in a form.
func inForm(t *testing.T, form grammar.Spec, dropFirst bool, th text.Thinking) *State {
	t.Helper()
	tok := tokenizertest.New(t, dropFirst)
	c := NewCompiler(tok, tok.Size(), map[int32]bool{tokenizertest.End: true}, 1<<20)
	s, err := c.Compile(t.Context(), "", form, text.Thinking{})
	if err == nil {
		err = s.Check(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.thinking = th
	t.Cleanup(s.cancel)
	return s
}

// applied waits for the mask.
func applied(c *State, logits, out []float32) error {
	err := c.Apply(logits, out)
	for errors.Is(err, ErrPending) {
		<-c.mask.done
		err = c.Apply(logits, out)
	}
	return err
}

// may are the tokens that may come next.
func may(t *testing.T, c *State) (ids []int) {
	t.Helper()
	logits, out := make([]float32, 7), make([]float32, 7)
	if err := applied(c, logits, out); err != nil {
		t.Fatal(err)
	}
	for id, v := range out {
		if !math.IsInf(float64(v), -1) {
			ids = append(ids, id)
		}
	}
	return ids
}

func wantMay(t *testing.T, c *State, want ...int) {
	t.Helper()
	got := may(t, c)
	same := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		same = same && got[i] == want[i]
	}
	if !same {
		t.Errorf("tokens %v may come, want %v", got, want)
	}
}

func takes(t *testing.T, c *State, ids ...int32) {
	t.Helper()
	for _, id := range ids {
		if _, err := c.Advance(id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAnswerEndsNotBeforeItsFormIsWhole(t *testing.T) {
	c := under(t, "ab?", false, text.Thinking{})
	wantMay(t, c, tokenizertest.A)
	takes(t, c, tokenizertest.A)
	wantMay(t, c, tokenizertest.B, tokenizertest.End)
	if done, err := c.Advance(tokenizertest.B); !done || err != nil {
		t.Errorf("nothing may follow: %v, %v", done, err)
	}
}

func TestThinkingIsFreeAndTheFormBeginsBehindIt(t *testing.T) {
	c := under(t, "ab", false, text.Thinking{MayBegin: true, Opens: tokenizertest.Opens, Closes: tokenizertest.Closes})
	wantMay(t, c, tokenizertest.A, tokenizertest.Opens)
	takes(t, c, tokenizertest.Opens)
	wantMay(t, c, tokenizertest.A, tokenizertest.B, tokenizertest.BlankA, tokenizertest.Opens, tokenizertest.Closes, tokenizertest.Line)
	takes(t, c, tokenizertest.B, tokenizertest.B, tokenizertest.Closes)
	wantMay(t, c, tokenizertest.A, tokenizertest.Line)
	takes(t, c, tokenizertest.Line, tokenizertest.A)
	wantMay(t, c, tokenizertest.B)

	c = under(t, "ab", false, text.Thinking{MayBegin: true, Opens: tokenizertest.Opens, Closes: tokenizertest.Closes})
	takes(t, c, tokenizertest.A)
	wantMay(t, c, tokenizertest.B)
}

// The marker of a call ends reasoning, and is the first token of the answer.
func TestACallInterruptsReasoning(t *testing.T) {
	c := under(t, "ab", false, text.Thinking{Underway: true, Closes: tokenizertest.Closes, Interrupts: []int32{tokenizertest.A}})
	takes(t, c, tokenizertest.B, tokenizertest.A)
	wantMay(t, c, tokenizertest.B)
}

// A vocabulary can have the mark although the model does not reason in this
// conversation; then the answer has the required form from its first token.
func TestReasoningBeginsInAFormOnlyIfTheModelPrefersIt(t *testing.T) {
	for name, c := range map[string]struct {
		likely int32
		thinks bool
	}{
		"thinking is likeliest":         {likely: tokenizertest.Opens, thinks: true},
		"an allowed token is likelier":  {likely: tokenizertest.A, thinks: false},
		"a forbidden token is likelier": {likely: tokenizertest.B, thinks: false},
		"the answer's end is likelier":  {likely: tokenizertest.End, thinks: false},
	} {
		logits, out := make([]float32, 7), make([]float32, 7)
		logits[c.likely] = 1
		form := under(t, "ab", false, text.Thinking{MayBegin: true, Opens: tokenizertest.Opens, Closes: tokenizertest.Closes})
		if err := applied(form, logits, out); err != nil {
			t.Fatal(err)
		}
		if got := !math.IsInf(float64(out[tokenizertest.Opens]), -1); got != c.thinks {
			t.Errorf("%s: reasoning may begin: %v, want %v", name, got, c.thinks)
		}
		if math.IsInf(float64(out[tokenizertest.A]), -1) {
			t.Errorf("%s: the form may not begin", name)
		}
	}
}

// A required call begins after the reasoning. Without one, text may begin with
// a blank that is not shown.
func TestCallMayFollowReasoning(t *testing.T) {
	calls := func(free bool) grammar.Spec {
		return grammar.Spec{Kind: grammar.Functions, Calls: &grammar.Calls{Free: free, Functions: []grammar.Function{{Name: "b", Schema: "true"}},
			Groups: []grammar.Group{{Begin: "ab", Chains: []grammar.Chain{{Open: `\n?`, Forms: []grammar.Form{{}}}}}}}}
	}
	thinks := text.Thinking{MayBegin: true, Opens: tokenizertest.Opens, Closes: tokenizertest.Closes}
	c := inForm(t, calls(false), true, thinks)
	wantMay(t, c, tokenizertest.A, tokenizertest.Opens)
	takes(t, c, tokenizertest.Opens, tokenizertest.B, tokenizertest.Closes)
	wantMay(t, c, tokenizertest.A, tokenizertest.Line)
	takes(t, c, tokenizertest.A, tokenizertest.B)
	wantMay(t, c, tokenizertest.B, tokenizertest.Line)

	c = inForm(t, calls(true), true, thinks)
	if !slices.Contains(may(t, c), tokenizertest.BlankA) {
		t.Errorf("the first word must not come with its blank: %v", may(t, c))
	}
	takes(t, c, tokenizertest.BlankA)
	for _, id := range []int32{tokenizertest.B, tokenizertest.A} { // the former begins a call, if it is taken
		if ok, err := c.Fits(id); !ok || err != nil {
			t.Errorf("token %d does not fit: %v", id, err)
		}
	}
	takes(t, c, tokenizertest.B)
	wantMay(t, c, tokenizertest.B, tokenizertest.Line)
}

func TestATokenThatIsShownOtherwiseAtTheStartDoesNotComeThere(t *testing.T) {
	c := under(t, " ?a a", true, text.Thinking{})
	wantMay(t, c, tokenizertest.A)
	takes(t, c, tokenizertest.A)
	wantMay(t, c, tokenizertest.BlankA)
	wantMay(t, under(t, " ?a", false, text.Thinking{}), tokenizertest.A, tokenizertest.BlankA)
}

func TestAFormThatTheVocabularyCannotSpellEndsInAnError(t *testing.T) {
	c := under(t, "axb", false, text.Thinking{})
	takes(t, c, tokenizertest.A)
	if err := applied(c, make([]float32, 7), make([]float32, 7)); !errors.Is(err, ErrSpelling) {
		t.Errorf("no token can continue: %v", err)
	}
	c = under(t, " a", true, text.Thinking{})
	if err := applied(c, make([]float32, 7), make([]float32, 7)); !errors.Is(err, ErrSpelling) {
		t.Errorf("a blank is not shown at the beginning, and the form begins with one: %v", err)
	}
}

func TestReleasedOnceHoweverARequestEnds(t *testing.T) {
	c := under(t, "a", false, text.Thinking{})
	released := 0
	free := c.release
	c.release = func() { released++; free() }
	c.Prepare()
	c.Release()
	if c.compiler.Wait(); released != 1 {
		t.Errorf("released %d times", released)
	}
	(*State)(nil).Release() // of a request without a constraint
}

func TestBytesAreThoseOfCompiledGrammars(t *testing.T) {
	tok := tokenizertest.New(t, false)
	c := NewCompiler(tok, tok.Size(), map[int32]bool{tokenizertest.End: true}, 1<<20)
	before := c.Bytes()
	s, err := c.Compile(t.Context(), "", grammar.Spec{Kind: grammar.JSONObject}, text.Thinking{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if c.Bytes() <= before {
		t.Errorf("%d bytes before, %d with a grammar", before, c.Bytes())
	}
}

// A panic over a mask is the error of its request, and all that computes ends.
func TestAPanicOverAMaskIsAnError(t *testing.T) {
	c := under(t, "[a-z]+", false, text.Thinking{})
	panics := 0
	c.compiler.OnPanic(func(any, []byte) { panics++ })
	c.matcher = grammar.Matcher{}
	c.Prepare()
	if err := applied(c, make([]float32, 7), make([]float32, 7)); !errors.Is(err, errPanic) {
		t.Errorf("%v", err)
	}
	c.Release()
	c.compiler.Wait()
	if panics != 1 {
		t.Errorf("%d panics", panics)
	}
}

// stalls is a context that has work wait until it is closed.
type stalls struct {
	context.Context
	end chan struct{}
}

func (s stalls) Err() error {
	<-s.end
	return s.Context.Err()
}

// A step waits for a request whose tokens take long to follow as long as for its masks, together.
func TestTokensThatTakeLongHoldUpOthersForAWhile(t *testing.T) {
	for name, hold := range map[string]func(s *State, token int32) error{
		"the next token of a form": func(s *State, token int32) error { _, err := s.Advance(token); return err },
		"a token of free text": func(s *State, token int32) error {
			s.free = true
			_, err := s.Fits(token)
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			form := grammar.Spec{Kind: grammar.EBNF, Source: "root::=" + strings.Repeat("[a-z ]? ", 900)}
			s := inForm(t, form, false, text.Thinking{})
			other, end := s.matcher, make(chan struct{})
			busy := make(chan error, 1)
			go func() { // with the table of the form
				_, err := other.Follow(stalls{t.Context(), end}, []byte(strings.Repeat("a", 800)))
				busy <- err
			}()
			synctest.Wait()
			const tokens = 100
			began := time.Now()
			for range tokens {
				if err := hold(s, 0); err != nil && !errors.Is(err, ErrPending) {
					t.Fatal(err)
				}
				synctest.Wait() // the account of the answer is not for two goroutines at once
				s.mask, s.late = nil, nil
			}
			if waited := time.Since(began); waited > (MaxWait+tokens*quickTry)*refill/(refill-MaxWait) {
				t.Errorf("%s: others waited for %d tokens for %v", name, tokens, waited)
			}
			close(end)
			if err := <-busy; err != nil {
				t.Error(err)
			}
			s.cancel()
			s.compiler.Wait()
		})
	}
}
