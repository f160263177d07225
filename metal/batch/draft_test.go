//go:build !race

package batch

import "testing"

// decoding is a scheduler with one request that decodes: 7 tokens are computed and one more
// is known, of a prompt of 7. Blocks have 4 tokens.
// Another one runs with a block of its own, if company is true.
func decoding(t *testing.T, l Limits, tokens int, company bool) (*Scheduler, Row) {
	t.Helper()
	l.BlockTokens, l.Sequences = 4, 2
	s, err := New(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Submit(Request{ID: 1, Prompt: 7, Tokens: tokens}); err != nil {
		t.Fatal(err)
	}
	if err := s.Submit(Request{ID: 2, Prompt: 3, Tokens: 1}); company && err != nil {
		t.Fatal(err)
	} else if !company {
		s.Remove(2)
	}
	s.Admit()
	grow(t, s, s.Plan(s.ProposeChunks(100)...))
	step := s.Plan()
	if len(step.Rows) != 1 || step.Rows[0] != (Row{ID: 1, Start: 7, Length: 1, Sample: true}) {
		t.Fatalf("step %+v", step)
	}
	return s, step.Rows[0]
}

func TestADraftIsAddedWhereItsTokenCanFollow(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		tokens int
		// company is another request, which keeps a block.
		company bool
		want    bool
	}{
		"room for more":                      {Limits{ContextTokens: 32, CacheTokens: 32}, 0, false, true},
		"room for both tokens":               {Limits{ContextTokens: 32, CacheTokens: 32}, 3, false, true},
		"the next token is the last":         {Limits{ContextTokens: 32, CacheTokens: 32}, 2, false, false},
		"the context ends after the draft":   {Limits{ContextTokens: 9, CacheTokens: 12}, 0, false, true},
		"the context ends before the draft":  {Limits{ContextTokens: 8, CacheTokens: 12}, 0, false, false},
		"no block is free for the draft":     {Limits{ContextTokens: 12, CacheTokens: 12}, 0, true, false},
		"a state is saved before the draft":  {Limits{ContextTokens: 32, CacheTokens: 32, Boundary: 8}, 0, false, false},
		"a state is saved after the draft":   {Limits{ContextTokens: 32, CacheTokens: 32, Boundary: 9}, 0, false, true},
		"a state was saved before the token": {Limits{ContextTokens: 32, CacheTokens: 32, Boundary: 7}, 0, false, true},
	} {
		s, row := decoding(t, c.limits, c.tokens, c.company)
		free := s.FreeTokens()
		got, ok := s.Draft(row)
		want := row
		if c.want {
			want.Length, want.Drafts = 2, 1
			free -= 4 // the ninth token begins a block
		}
		if ok != c.want || got != want || s.FreeTokens() != free {
			t.Errorf("%s: %+v, %t, %d tokens are free, want %+v and %d", name, got, ok, s.FreeTokens(), want, free)
		}
		if !got.Decode() {
			t.Errorf("%s: %+v does not count as decoding", name, got)
		}
		if _, again := s.Draft(got); again && c.want {
			t.Errorf("%s: a row has two drafts", name)
		}
	}
}

// TestADraftThatIsNotTakenCostsNothing: the request continues, and gives all its blocks back.
func TestADraftThatIsNotTakenCostsNothing(t *testing.T) {
	for name, taken := range map[string]int{"not taken": 1, "taken": 2} {
		s, row := decoding(t, Limits{ContextTokens: 32, CacheTokens: 32}, 0, false)
		drafted, ok := s.Draft(row)
		if step := (Step{Rows: []Row{drafted}}); !ok || step.Drafts() != 1 || step.Decodes() != 1 || step.Load() != (Load{Decodes: 1, DecodeContext: 7}) {
			t.Errorf("%s: %+v, load %+v", name, drafted, step.Load())
		}
		for i := range taken {
			if err := s.Computed(Row{ID: 1, Start: 7 + i, Length: 1}); err != nil {
				t.Fatal(err)
			}
			if err := s.Grow(1); err != nil {
				t.Fatal(err)
			}
		}
		if step := s.Plan(); len(step.Rows) != 1 || step.Rows[0] != (Row{ID: 1, Start: 7 + taken, Length: 1, Sample: true}) {
			t.Errorf("%s: the next step is %+v", name, step)
		}
		if s.Remove(1); s.FreeTokens() != 32 {
			t.Errorf("%s: %d tokens are free at the end", name, s.FreeTokens())
		}
	}
}
