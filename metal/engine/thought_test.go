package engine

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Tokens of thinker, by their ids.
const (
	tokA, tokB, tokBlankA, tokOpens, tokCloses, tokEnd, tokLine = 0, 1, 2, 3, 4, 5, 6
)

// thinker is a vocabulary of a few tokens; drop is a decoder that leaves out the
// first blank of a text.
func thinker(t *testing.T, drop bool) *tokenizer.Tokenizer {
	t.Helper()
	decoder := map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}
	if drop {
		decoder["prepend_scheme"] = "always"
	}
	added := []any{}
	for id, text := range map[int]string{tokOpens: "<think>", tokCloses: "</think>", tokEnd: "<end>"} {
		added = append(added, map[string]any{"id": id, "content": text, "special": id == tokEnd, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	raw, err := json.Marshal(map[string]any{
		"model":   map[string]any{"type": "BPE", "vocab": map[string]int{"a": tokA, "b": tokB, "▁a": tokBlankA, "<think>": tokOpens, "</think>": tokCloses, "<end>": tokEnd, "\n": tokLine}, "merges": []string{}},
		"decoder": decoder, "added_tokens": added,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromFolder(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// under is an answer of thinker under an expression.
func under(t *testing.T, expression string, drop bool, th thought) *constrained {
	t.Helper()
	return inForm(t, grammar.Spec{Kind: grammar.Regex, Source: expression}, drop, th)
}

// inForm is an answer of thinker in a form.
func inForm(t *testing.T, form grammar.Spec, drop bool, th thought) *constrained {
	t.Helper()
	tok := thinker(t, drop)
	s := &serving{tok: tok, ends: map[int32]bool{tokEnd: true}}
	s.grammars = grammar.NewCache(tok.Size(), s.spellShown, 1<<20)
	s.shownOtherwise = s.findShownOtherwise
	c, refusal := s.constrain(context.Background(), Request{Constraint: &Constraint{Spec: form}}, nil)
	if refusal != nil {
		t.Fatal(refusal)
	}
	c.thought = th
	t.Cleanup(func() { c.cancel() })
	return c
}

// applied waits for the mask.
func applied(c *constrained, logits, out []float32) error {
	err := c.apply(logits, out)
	for errors.Is(err, errLate) {
		<-c.masking.done
		err = c.apply(logits, out)
	}
	return err
}

// may are the tokens that may come next.
func may(t *testing.T, c *constrained) (ids []int) {
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

func wantMay(t *testing.T, c *constrained, want ...int) {
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

func takes(t *testing.T, c *constrained, ids ...int32) {
	t.Helper()
	for _, id := range ids {
		if _, err := c.took(id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAnswerEndsNotBeforeItsFormIsWhole(t *testing.T) {
	c := under(t, "ab?", false, thought{})
	wantMay(t, c, tokA)
	takes(t, c, tokA)
	wantMay(t, c, tokB, tokEnd)
	if done, err := c.took(tokB); !done || err != nil {
		t.Errorf("nothing may follow: %v, %v", done, err)
	}
}

func TestThinkingIsFreeAndTheFormBeginsBehindIt(t *testing.T) {
	c := under(t, "ab", false, thought{may: true, opens: tokOpens, closes: []int32{tokCloses}})
	wantMay(t, c, tokA, tokOpens)
	takes(t, c, tokOpens)
	wantMay(t, c, tokA, tokB, tokBlankA, tokOpens, tokCloses, tokLine)
	takes(t, c, tokB, tokB, tokCloses)
	wantMay(t, c, tokA, tokLine)
	takes(t, c, tokLine, tokA)
	wantMay(t, c, tokB)

	c = under(t, "ab", false, thought{may: true, opens: tokOpens, closes: []int32{tokCloses}})
	takes(t, c, tokA)
	wantMay(t, c, tokB)
}

// A vocabulary can have the mark although the model does not reason in this
// conversation; then the answer has the required form from its first token.
func TestThoughtBeginsInAFormOnlyWhereTheModelPrefersIt(t *testing.T) {
	for name, c := range map[string]struct {
		likely int32
		thinks bool
	}{
		"thinking is likeliest":         {tokOpens, true},
		"an allowed token is likelier":  {tokA, false},
		"a forbidden token is likelier": {tokB, false},
		"the answer's end is likelier":  {tokEnd, false},
	} {
		logits, out := make([]float32, 7), make([]float32, 7)
		logits[c.likely] = 1
		form := under(t, "ab", false, thought{may: true, opens: tokOpens, closes: []int32{tokCloses}})
		if err := applied(form, logits, out); err != nil {
			t.Fatal(err)
		}
		if got := !math.IsInf(float64(out[tokOpens]), -1); got != c.thinks {
			t.Errorf("%s: a thought may begin: %v, want %v", name, got, c.thinks)
		}
		if math.IsInf(float64(out[tokA]), -1) {
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
	thinks := thought{may: true, opens: tokOpens, closes: []int32{tokCloses}}
	c := inForm(t, calls(false), true, thinks)
	wantMay(t, c, tokA, tokOpens)
	takes(t, c, tokOpens, tokB, tokCloses)
	wantMay(t, c, tokA, tokLine)
	takes(t, c, tokA, tokB)
	wantMay(t, c, tokB, tokLine)

	c = inForm(t, calls(true), true, thinks)
	if !slices.Contains(may(t, c), tokBlankA) {
		t.Errorf("the first word must not come with its blank: %v", may(t, c))
	}
	takes(t, c, tokBlankA, tokB)
	wantMay(t, c, tokB, tokLine)
}

func TestWhetherAModelThinksIsReadInItsPrompt(t *testing.T) {
	tok := thinker(t, false)
	r := text.Reasoning{Opens: "<think>", Closes: "</think>"}
	for name, c := range map[string]struct {
		prompt        []int32
		may, underWay bool
	}{
		"nothing is said":          {[]int32{tokA, tokB}, true, false},
		"the template opened it":   {[]int32{tokA, tokOpens, tokLine}, false, true},
		"the template closed it":   {[]int32{tokA, tokOpens, tokLine, tokCloses, tokLine}, false, false},
		"an earlier turn closed":   {[]int32{tokOpens, tokCloses, tokA, tokB, tokA, tokB}, true, false},
		"an earlier turn, and now": {[]int32{tokOpens, tokCloses, tokA, tokB, tokA, tokOpens}, false, true},
	} {
		if got := thoughtOf(tok, r, c.prompt); got.may != c.may || got.underWay != c.underWay {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := thoughtOf(tok, text.Reasoning{Closes: "</think>", Always: true}, nil); !got.underWay {
		t.Errorf("a model that always thinks: %+v", got)
	}
	if got := thoughtOf(tok, text.Reasoning{}, []int32{tokOpens}); got.may || got.underWay {
		t.Errorf("a model that does not think: %+v", got)
	}
}

func TestATokenThatIsShownOtherwiseAtTheStartDoesNotComeThere(t *testing.T) {
	c := under(t, " ?a a", true, thought{})
	wantMay(t, c, tokA)
	takes(t, c, tokA)
	wantMay(t, c, tokBlankA)
	wantMay(t, under(t, " ?a", false, thought{}), tokA, tokBlankA)
}

func TestAFormThatTheVocabularyCannotSpellEndsInAnError(t *testing.T) {
	c := under(t, "axb", false, thought{})
	takes(t, c, tokA)
	if err := applied(c, make([]float32, 7), make([]float32, 7)); err == nil {
		t.Error("no token can go on, and nothing is said")
	}
}

func TestConstraintsAreLetGoOfHoweverARequestEnds(t *testing.T) {
	c := under(t, "a", false, thought{})
	released := 0
	free := c.release
	c.release = func() { released++; free() }
	a := &active{constraint: c}
	c.prepare()
	e := &Engine{}
	e.letGo(a)
	e.letGo(a)
	if c.maskings.Wait(); released != 1 {
		t.Errorf("released %d times", released)
	}
	e.letGo(&active{}) // one without a constraint
}

func TestWhatConstraintsTakeCountsAsHeld(t *testing.T) {
	tok := thinker(t, false)
	s := &serving{tok: tok, ends: map[int32]bool{tokEnd: true}}
	before := held(tensor.Memory{}, 0, s, &publication{})
	s.grammars = grammar.NewCache(tok.Size(), s.spellShown, 1<<20)
	_, release, err := s.grammars.Table(context.Background(), "", grammar.Spec{Kind: grammar.JSONObject})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if more := held(tensor.Memory{}, 0, s, &publication{}) - before; more != s.grammars.Bytes() || more == 0 {
		t.Errorf("%d bytes more are held, constraints take %d", more, s.grammars.Bytes())
	}
}
