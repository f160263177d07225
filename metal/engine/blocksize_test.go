package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/race"
)

// TestABlockOfAnotherSizeThanItsKeyPromisesIsComputedAgain, and so are the blocks after it. A shorter one ended the
// process.
func TestABlockOfAnotherSizeThanItsKeyPromisesIsComputedAgain(t *testing.T) {
	for name, path := range map[string]string{"plain": model(t, tinymodel.Default()), "hybrid": hybrid(t)} {
		if race.Enabled && name == "hybrid" {
			continue // minutes
		}
		below := kvtest.NewFake()
		o := engine.Options{ModelPath: path, CacheMemory: mebi, ModelDigest: "sha256:aa", Below: func(kv.Origin) kv.Tier { return below }}
		r := engine.Request{Tokens: tokensOf(1, 400, 400), Sampling: draws(1), MaxTokens: 1}
		e := ready(t, o, ref.Options{})
		want := ask(t, e, r)
		stop(e)
		whole := map[kv.Key][]byte{}
		for _, key := range below.Puts() {
			n, _ := below.Size(key)
			whole[key] = make([]byte, n)
			if err := below.Read(t.Context(), key, whole[key]); err != nil {
				t.Fatal(err)
			}
		}
		cached := func(what string) int {
			e := ready(t, o, ref.Options{})
			defer stop(e)
			got := ask(t, e, r)
			sameButCached(t, name+" with "+what, []answer{got}, []answer{want})
			return got.finished.Usage.Cached
		}
		all := cached("whole blocks")
		refused := 0
		for key, payload := range whole {
			for what, other := range map[string][]byte{"an empty block": {}, "a shorter block": payload[:len(payload)-1], "a longer block": append(payload[:len(payload):len(payload)], 0)} {
				below.Forget(key)
				below.Put(key, other)
				if cached(what) < all {
					refused++
				}
				below.Forget(key)
				below.Put(key, payload)
			}
		}
		if all == 0 || refused < 3 {
			t.Errorf("%s: %d tokens of whole blocks were restored, and %d others were refused", name, all, refused)
		}
	}
}
