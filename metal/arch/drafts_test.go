package arch_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// draftsRecord is what a reference computes of each token of a prompt with a draft head;
// testdata/drafts/record.py wrote it.
type draftsRecord struct {
	Stride int
	Cases  []struct {
		Name, SHA256 string
		Prompt       []int32
		// Logits of the token after each one; of all but the last every Stride-th.
		Logits [][]float64
	}
}

// TestDraftHeadsEqualTheReference computes a prompt in chunks, and then token by token, each
// with a draft: now the next token, which is kept, now another one, which is taken back.
func TestDraftHeadsEqualTheReference(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "drafts", "mlx-vlm.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all draftsRecord
	if err := json.Unmarshal(b, &all); err != nil || len(all.Cases) != len(tinymodel.DraftCases()) {
		t.Fatalf("%d cases: %v", len(all.Cases), err)
	}
	for _, b := range backends() {
		for i, c := range tinymodel.DraftCases() {
			t.Run(b.name+"/"+c.Name, func(t *testing.T) {
				path, err := c.Write(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				want := all.Cases[i]
				if sum, err := tinymodel.Digest(path); err != nil || want.Name != c.Name || want.SHA256 != sum {
					t.Fatalf("the reference read another file: %v; run metal/arch/testdata/drafts/make.sh", err)
				}
				n := loadOn(t, path, b.open(t))
				d := &drafted{network: n, head: n.m.(arch.Drafter), prompt: want.Prompt, tolerance: b.tolerance[n.precision] * recurring}
				if !d.head.Drafts() {
					t.Fatal("the draft head was not loaded")
				}
				for at, logits := range d.all(7) {
					stride := all.Stride
					if at == len(want.Prompt)-1 {
						stride = 1
					}
					d.near(at, logits, want.Logits[at], stride)
				}
			})
		}
	}
}

// drafted is a request that is computed with drafts.
type drafted struct {
	*network
	head      arch.Drafter
	prompt    []int32
	tolerance float64
	state     []float32
}

// all computes the prompt, the first tokens in two chunks, and returns the logits of the
// draft head after each token that it read by itself.
func (d *drafted) all(first int) map[int][]float32 {
	d.step(tensor.Segment{Request: 1, Length: first - 3}, d.prompt[:first-3], false)
	d.step(tensor.Segment{Request: 1, Start: first - 3, Length: 3}, d.prompt[first-3:first], false)
	out := map[int][]float32{}
	for at := first; at < len(d.prompt); at++ {
		g := tensor.Segment{Request: 1, Start: at, Length: 1}
		out[at] = d.draft(g, d.prompt[at])
		if at+1 == len(d.prompt) {
			break
		}
		g.Length, g.Draft = 2, 1
		next, right := d.prompt[at+1], at%3 > 0
		if !right {
			next = (next + 1) % int32(d.vocab)
		}
		d.step(g, []int32{d.prompt[at], next}, right)
		if right {
			at++
		} else {
			d.cache.Truncate(1, at+1)
		}
		if n := d.cache.Length(1); n != at+1 {
			d.t.Fatalf("%d tokens are held, want %d", n, at+1)
		}
	}
	return out
}

// draft has the head read one token.
func (d *drafted) draft(g tensor.Segment, token int32) []float32 {
	sc := d.b.NewScope(context.Background())
	defer sc.Close()
	out := make([]float32, d.vocab)
	sc.Read(d.head.Draft(sc, d.cache, sc.IDs([]int32{token}), []tensor.Segment{g}, sc.From(d.state, 1, len(d.state))), out)
	if err := sc.Err(); err != nil {
		d.t.Fatal(err)
	}
	return out
}

// step computes tokens of which the head has read the first if there is a draft, and notes
// the state of the last one, or of the last but a draft that is not right.
func (d *drafted) step(g tensor.Segment, tokens []int32, right bool) {
	sc := d.b.NewScope(context.Background())
	defer sc.Close()
	how := nn.Drafting{Drafted: []bool{g.Draft > 0}, Wanted: []int{g.Length - 1}}
	if g.Draft > 0 && !right {
		how.Wanted[0]--
	}
	if d.state != nil {
		how.Before = sc.From(d.state, 1, len(d.state))
	}
	_, states := d.head.StepDrafting(sc, d.cache, sc.IDs(tokens), []tensor.Segment{g}, nil, nn.Sight{}, how)
	if err := sc.Err(); err != nil {
		d.t.Fatal(err)
	}
	d.state = make([]float32, states.Shape()[1])
	sc.Read(states, d.state)
	if err := sc.Err(); err != nil {
		d.t.Fatal(err)
	}
}

// near compares every stride-th logit.
func (d *drafted) near(at int, got []float32, want []float64, stride int) {
	d.t.Helper()
	top := 0.0
	for _, v := range want {
		top = max(top, math.Abs(v))
	}
	for i, v := range want {
		if diff := math.Abs(float64(got[i*stride]) - v); !(diff <= d.tolerance*top) {
			d.t.Fatalf("token %d: logit %d is %v, want %v", at, i*stride, got[i*stride], v)
		}
	}
}

// TestADraftHeadChangesNoLogit compares a model with the same one whose head is not loaded.
func TestADraftHeadChangesNoLogit(t *testing.T) {
	c := tinymodel.DraftCases()[0]
	path, err := c.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backends() {
		with, tokens := loadOn(t, path, b.open(t)), c.Prompts()[0]
		without := loadChanged(t, path, b.open(t), (*weights.File).DropDraft)
		if a, b := with.m.CacheSpec().Layers, without.m.CacheSpec().Layers; a != b+1 {
			t.Errorf("the cache has %d layers, want one more than %d", a, b)
		}
		got, want := with.all(1, tokens, 5), without.all(1, tokens, 5)
		for i, v := range want {
			if diff := math.Abs(float64(got[i] - v)); diff > b.tolerance[with.precision]*10 {
				t.Fatalf("%s: logit %d is %v, and %v without a draft head", b.name, i, got[i], v)
			}
		}
	}
}

// ending is a context that ends when it has been asked a number of times.
type ending struct {
	context.Context
	left *int
}

func (e ending) Err() error {
	if *e.left--; *e.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestAFaultAnywhereInAStepWithDraftsEndsTheStep: after a fault of the back end arrays have no shape.
func TestAFaultAnywhereInAStepWithDraftsEndsTheStep(t *testing.T) {
	c := tinymodel.DraftCases()[0]
	path, err := c.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backends() {
		n := loadOn(t, path, b.open(t))
		d := &drafted{network: n, head: n.m.(arch.Drafter)}
		tokens := c.Prompts()[0][:4]
		d.step(tensor.Segment{Request: 1, Length: 4}, tokens, false)
		for name, work := range map[string]func(tensor.Scope, tensor.RequestID){
			"step": func(sc tensor.Scope, id tensor.RequestID) {
				d.head.StepDrafting(sc, d.cache, sc.IDs(tokens), []tensor.Segment{{Request: id, Length: 4}}, []int{3}, nn.Sight{}, nn.Drafting{Wanted: []int{3}})
			},
			"draft and its step": func(sc tensor.Scope, id tensor.RequestID) {
				d.head.Draft(sc, d.cache, sc.IDs(tokens[:1]), []tensor.Segment{{Request: id, Length: 1}}, sc.From(d.state, 1, len(d.state)))
				d.head.StepDrafting(sc, d.cache, sc.IDs(tokens), []tensor.Segment{{Request: id, Length: 4}}, []int{3}, nn.Sight{}, nn.Drafting{Drafted: []bool{true}})
			},
		} {
			var fault error
			for asked := 0; asked == 0 || fault != nil && asked < 10_000; asked++ {
				left, id := asked, tensor.RequestID(2+asked)
				sc := d.b.NewScope(ending{context.Background(), &left})
				work(sc, id)
				fault = sc.Err()
				sc.Close()
				d.cache.Drop(id)
			}
			if fault != nil {
				t.Errorf("%s: a %s without a fault fails: %v", b.name, name, fault)
			}
		}
	}
}
