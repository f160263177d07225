package kv_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/test/seed"
)

func TestEveryLayerKindIsClassified(t *testing.T) {
	sliced, recurrent := kv.Kept{Layer: kv.Sliced}, kv.Kept{Layer: kv.Recurrent}
	window := func(n int) kv.Kept { return kv.Kept{Layer: kv.Rotating, Window: n} }
	for name, c := range map[string]struct {
		kept    []kv.Kept
		context int
		want    kv.Shape
	}{
		"plain":               {kept: []kv.Kept{sliced}, context: 8192, want: kv.Shape{Block: 256}},
		"a window of a block": {kept: []kv.Kept{window(512)}, context: 8192, want: kv.Shape{Block: 512, States: true, Bare: true}},
		"a small window":      {kept: []kv.Kept{sliced, window(128)}, context: 8192, want: kv.Shape{Block: 512, States: true}},
		"the smallest multiple that is long enough": {kept: []kv.Kept{sliced, window(300)}, context: 8192, want: kv.Shape{Block: 600, States: true}},
		"a window beyond any block":                 {kept: []kv.Kept{sliced, window(4096)}, context: 32768, want: kv.Shape{Block: 1024, States: true}},
		"recurrent":                                 {kept: []kv.Kept{recurrent}, context: 8192, want: kv.Shape{Block: 2048, States: true, Bare: true, Grid: 64}},
		"recurrent and attention layers":            {kept: []kv.Kept{sliced, recurrent}, context: 262144, want: kv.Shape{Block: 2048, States: true, Grid: 64}},
		"all three":                                 {kept: []kv.Kept{window(512), sliced, recurrent}, context: 32768, want: kv.Shape{Block: 2048, States: true, Grid: 64}},
		"plain in 512 tokens":                       {kept: []kv.Kept{sliced}, context: 512, want: kv.Shape{Block: 128}},
		"recurrent in 4096 tokens":                  {kept: []kv.Kept{recurrent}, context: 4096, want: kv.Shape{Block: 1024, States: true, Bare: true, Grid: 32}},
		"plain in no more than a block":             {kept: []kv.Kept{sliced}, context: 10, want: kv.Shape{Block: 16}},
		"recurrent in 64 tokens":                    {kept: []kv.Kept{recurrent}, context: 64, want: kv.Shape{Block: 16, States: true, Bare: true, Grid: 1}},
	} {
		if got, err := kv.ShapeOf(c.kept, c.context); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		kept    []kv.Kept
		context int
	}{
		"a kind that says nothing": {kept: []kv.Kept{sliced, {}}, context: 8192},
		"an unknown kind":          {kept: []kv.Kept{{Layer: 17}}, context: 8192},
		"a window of nothing":      {kept: []kv.Kept{window(0)}, context: 8192},
		"no layers":                {kept: nil, context: 8192},
		"no context":               {kept: []kv.Kept{sliced}, context: 0},
	} {
		if got, err := kv.ShapeOf(c.kept, c.context); err == nil {
			t.Errorf("%s: taken as %+v", name, got)
		}
	}
}

func TestStepsEndWhereAStateIsSaved(t *testing.T) {
	plain := kv.Shape{Block: 256}
	rotating := kv.Shape{Block: 512, States: true}
	hybrid := kv.Shape{Block: 2048, States: true, Grid: 64}
	for _, c := range []struct {
		shape               kv.Shape
		after, prompt, want int
	}{
		{shape: plain, after: 0, prompt: 5000, want: 0},
		{shape: rotating, after: 0, prompt: 5000, want: 512}, {shape: rotating, after: 511, prompt: 5000, want: 512}, {shape: rotating, after: 512, prompt: 5000, want: 1024},
		{shape: rotating, after: 512, prompt: 600, want: 1024}, // the end of its prompt is not one
		{shape: hybrid, after: 0, prompt: 90_000, want: 2048}, {shape: hybrid, after: 88_064, prompt: 90_000, want: 89_984}, {shape: hybrid, after: 89_984, prompt: 90_000, want: 90_112},
		{shape: hybrid, after: 0, prompt: 64, want: 2048}, {shape: hybrid, after: 0, prompt: 65, want: 64}, {shape: hybrid, after: 0, prompt: 2049, want: 2048}, {shape: hybrid, after: 2048, prompt: 2048, want: 4096},
	} {
		if got := c.shape.Stop(c.after, c.prompt); got != c.want {
			t.Errorf("%v after %d of a prompt of %d: %d, want %d", c.shape, c.after, c.prompt, got, c.want)
		}
	}
}

// world is the plain model of what tiers hold: whole prefixes, by their tokens.
type world struct{ blocks, states map[string]bool }

func (w world) longest(s kv.Shape, tokens []int32, most int) int {
	best := 0
	for n := 1; n <= min(most, len(tokens)); n++ {
		ok := s.States && w.states[fmt.Sprint(tokens[:n])] || !s.States && n%s.Block == 0
		for b := s.Block; b <= n && ok && !s.Bare; b += s.Block {
			ok = w.blocks[fmt.Sprint(tokens[:b])]
		}
		if ok {
			best = n
		}
	}
	return best
}

// Random histories against a model that stores prefixes instead of keys: blocks
// and states come and go, and prompts share beginnings.
func TestLongestRestorablePoint(t *testing.T) {
	seed := seed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	found, partial := 0, 0
	for _, s := range []kv.Shape{{Block: 4}, {Block: 4, States: true}, {Block: 8, States: true, Grid: 2}, {Block: 8, States: true, Grid: 1}, {Block: 4, States: true, Bare: true}} {
		has, w := map[kv.Key]bool{}, world{blocks: map[string]bool{}, states: map[string]bool{}}
		root := kv.Root(origin, kv.Salt{})
		var prompts [][]int32
		for range 600 {
			tokens := prompt(r, prompts)
			prompts = append(prompts, tokens)
			c := kv.NewChain(s, root)
			most := r.IntN(len(tokens) + 3)
			asked := map[kv.Key]bool{}
			got := c.Find(tokens, most, func(k kv.Key) bool {
				if asked[k] {
					t.Fatalf("key %s was asked for twice", k)
				}
				asked[k] = true
				return has[k]
			})
			if want := w.longest(s, tokens, most); got.Tokens != want {
				t.Fatalf("%v: %d of %d tokens restored, want %d", s, got.Tokens, len(tokens), want)
			}
			if got.Blocks != got.Tokens/s.Block || got.State != (s.States && got.Tokens > 0) {
				t.Fatalf("%v: point %+v", s, got)
			}
			if got.Tokens > 0 {
				found++
			}
			if got.Tokens%s.Block != 0 {
				partial++
			}
			for b, k := range c.Keys() { // saved, or forgotten again
				at := fmt.Sprint(tokens[:(b+1)*s.Block])
				has[k] = r.IntN(5) > 0
				w.blocks[at] = has[k]
			}
			for n := s.Block; s.States && n <= len(tokens); n += s.Block {
				save(r, c, tokens, n, has, w)
			}
			if end := s.Stop((len(tokens)-1)/s.Block*s.Block, len(tokens)); s.States && end < len(tokens) {
				save(r, c, tokens, end, has, w)
			}
		}
	}
	if found < 200 || partial < 50 {
		t.Errorf("%d points were found, %d of them within a block: the histories show nothing", found, partial)
	}
}

// prompt is a new one, which often begins as an earlier one.
func prompt(r *rand.Rand, earlier [][]int32) []int32 {
	var tokens []int32
	if len(earlier) > 0 && r.IntN(4) > 0 {
		old := earlier[r.IntN(len(earlier))]
		tokens = append(tokens, old[:r.IntN(len(old)+1)]...)
	}
	for range 1 + r.IntN(20) {
		tokens = append(tokens, int32(r.IntN(2)))
	}
	if len(tokens) > 60 {
		tokens = tokens[:60]
	}
	return tokens
}

func save(r *rand.Rand, c *kv.Chain, tokens []int32, n int, has map[kv.Key]bool, w world) {
	k := c.State(tokens, n)
	has[k] = r.IntN(3) > 0
	w.states[fmt.Sprint(tokens[:n])] = has[k]
}

// By keys alone, with what was saved before a cancellation at 51,200 tokens.
func TestReplayOf90000TokensResumesFromItsLastBoundary(t *testing.T) {
	s, err := kv.ShapeOf([]kv.Kept{{Layer: kv.Sliced}, {Layer: kv.Recurrent}}, 131072)
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, 90_000)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % 32_000)
	}
	const computed = 52_345
	has := map[kv.Key]bool{}
	c := kv.NewChain(s, kv.Root(origin, kv.Salt{}))
	c.Grow(tokens[:computed])
	for _, k := range c.Keys() {
		has[k] = true
	}
	for at := s.Stop(0, len(tokens)); at <= computed; at = s.Stop(at, len(tokens)) {
		has[c.State(tokens, at)] = true
	}
	find := func(tokens []int32) kv.Point {
		return kv.NewChain(s, kv.Root(origin, kv.Salt{})).Find(tokens, len(tokens)-1, func(k kv.Key) bool { return has[k] })
	}
	if got := find(tokens); got.Tokens != 51_200 {
		t.Errorf("resumed from %d, want 51200", got.Tokens)
	}
	tokens[30_000]++
	if got := find(tokens); got.Tokens != 28_672 {
		t.Errorf("another token at 30000: resumed from %d, want 28672", got.Tokens)
	}
}

// The points of a long prompt that waits are searched for before each step: their keys are computed once
// until Forget, and what is cached is asked for each time.
func TestASearchAgainComputesNoKeyAgain(t *testing.T) {
	const most, last = 31, 30
	for _, s := range []kv.Shape{{Block: 8, States: true, Grid: 2}, {Block: 8, States: true, Bare: true, Grid: 2}} {
		tokens, others := make([]int32, most+1), make([]int32, most+1)
		for i := range tokens {
			tokens[i], others[i] = int32(i), -1
		}
		root, has := kv.Root(origin, kv.Salt{}), map[kv.Key]bool{}
		writer, c := kv.NewChain(s, root), kv.NewChain(s, root)
		find := func(tokens []int32) int { return c.Find(tokens, most, func(k kv.Key) bool { return has[k] }).Tokens }
		writer.Grow(tokens)
		for _, k := range writer.Keys() {
			has[k] = true
		}
		if n := find(tokens); n != 0 {
			t.Errorf("%v: %d tokens are found without a state", s, n)
		}
		has[writer.State(tokens, last)] = true
		if n := find(others); n != last {
			t.Errorf("%v: %d tokens are found, want %d: keys were computed again, of other tokens", s, n, last)
		}
		if c.Forget(); find(others) != 0 {
			t.Errorf("%v: keys are kept after Forget", s)
		}
		if c.Forget(); find(tokens) != last {
			t.Errorf("%v: %d tokens are found after Forget, want %d", s, find(tokens), last)
		}
	}
}

// A tenant finds its own blocks and states, and of another's those of the shared
// beginning, up to its last whole block or state.
func TestTenantsFindOnlyWhatIsShared(t *testing.T) {
	common := kv.Root(origin, kv.Salt{Tenant: "everyone"})
	for _, s := range []kv.Shape{{Block: 4}, {Block: 4, States: true}, {Block: 8, States: true, Grid: 2}, {Block: 4, States: true, Bare: true}} {
		for shared := range 20 {
			chain := func(tenant string) *kv.Chain {
				c := kv.NewChain(s, kv.Root(origin, kv.Salt{Tenant: tenant}))
				if shared > 0 {
					c.Share(common, shared)
				}
				return c
			}
			tokens := make([]int32, 32)
			for i := range tokens {
				tokens[i] = int32(i)
			}
			has := map[kv.Key]bool{}
			a := chain("a")
			a.Grow(tokens)
			for _, k := range a.Keys() {
				has[k] = true
			}
			step := s.Block
			if s.Grid > 0 {
				step = s.Grid
			}
			for n := step; s.States && n <= len(tokens); n += step {
				has[a.State(tokens, n)] = true
			}
			find := func(tenant string) int {
				return chain(tenant).Find(tokens, len(tokens), func(k kv.Key) bool { return has[k] }).Tokens
			}
			if got := find("a"); got != len(tokens) {
				t.Errorf("%v, %d shared: the tenant itself finds %d tokens", s, shared, got)
			}
			if got, want := find("b"), shared/step*step; got != want {
				t.Errorf("%v, %d shared: another tenant finds %d tokens, want %d", s, shared, got, want)
			}
		}
	}
}

// TestKeysDependOnImages: blocks and states with a token of an image have other keys for
// other content, at any place, and those before it the same.
func TestKeysDependOnImages(t *testing.T) {
	tokens := make([]int32, 64)
	keys := func(images ...kv.Image) (out []kv.Key) {
		c := kv.NewChain(kv.Shape{Block: 16, States: true, Grid: 4}, kv.Root(kv.Origin{}, kv.Salt{}))
		c.See(images)
		c.Grow(tokens)
		out = append(out, c.Keys()...)
		for n := 4; n <= 64; n += 4 {
			out = append(out, c.State(tokens, n))
		}
		return out
	}
	same := func(a, b []kv.Key) (n int) {
		for n < 4 && a[n] == b[n] {
			n++
		}
		return n
	}
	one, other := kv.Image{From: 31, To: 40, Digest: [32]byte{1}}, kv.Image{From: 31, To: 40, Digest: [32]byte{2}}
	moved := one
	moved.From--
	for name, tc := range map[string]struct {
		a, b []kv.Image
		want int
	}{
		"another image":           {a: []kv.Image{one}, b: []kv.Image{other}, want: 1},
		"no image":                {a: []kv.Image{one}, b: nil, want: 1},
		"an image elsewhere":      {a: []kv.Image{one}, b: []kv.Image{moved}, want: 1},
		"the same image":          {a: []kv.Image{one}, b: []kv.Image{one}, want: 4},
		"another image later":     {a: []kv.Image{one, {From: 48, To: 50, Digest: [32]byte{1}}}, b: []kv.Image{one, {From: 48, To: 50, Digest: [32]byte{2}}}, want: 3},
		"images that are swapped": {a: []kv.Image{{From: 0, To: 4, Digest: [32]byte{1}}, {From: 4, To: 8, Digest: [32]byte{2}}}, b: []kv.Image{{From: 0, To: 4, Digest: [32]byte{2}}, {From: 4, To: 8, Digest: [32]byte{1}}}, want: 0},
	} {
		a, b := keys(tc.a...), keys(tc.b...)
		if got := same(a, b); got != tc.want {
			t.Errorf("%s: the keys of %d blocks are the same, want %d", name, got, tc.want)
		}
		for i, k := range a[4:] { // a state in the block of the image, from its first token on
			end := 4 * (i + 1)
			if differ := k != b[4+i]; differ != (tc.want < 4 && end > firstOf(tc.a, tc.b)) {
				t.Errorf("%s: the key of the state after %d tokens differs: %v", name, end, differ)
			}
		}
	}
}

// firstOf is where the first image begins that two lists do not have alike.
func firstOf(a, b []kv.Image) int {
	for i := range a {
		if i >= len(b) {
			return a[i].From
		}
		if a[i] != b[i] {
			return min(a[i].From, b[i].From)
		}
	}
	return 1 << 30
}
