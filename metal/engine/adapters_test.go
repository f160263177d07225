package engine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// adapted returns options of a quantised model with two adapters, one and two.
func adapted(t *testing.T) engine.Options {
	t.Helper()
	c, dir := tinymodel.Default(), t.TempDir()
	o := engine.Options{ModelPath: filepath.Join(dir, "model"), Sequences: 4, ModelDigest: "m", Numerics: "n"}
	if err := tinymodel.WriteFolder(o.ModelPath, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.Float32)}); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"one", "two"} {
		path := filepath.Join(dir, name)
		if err := (tinymodel.Adapter{Seed: uint64(i), Rank: 3 + i, Alpha: 8}).Write(path, c); err != nil {
			t.Fatal(err)
		}
		o.Adapters = append(o.Adapters, engine.Adapter{Name: name, Path: path, Digest: fmt.Sprint("d", i)})
	}
	return o
}

func TestAdaptersAndTheModelAnswerInOneBatch(t *testing.T) {
	for name, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, adapted(t), r)
			var rs []engine.Request
			for i, text := range []string{"a", "The fleet keeps every model. ", strings.Repeat("The fleet keeps every model. ", 9)} {
				for _, adapter := range []string{"", "one", "two"} {
					rs = append(rs, engine.Request{Prompt: &text, Adapter: adapter, Sampling: draws(uint64(i)), Logprobs: alternatives(2), MaxTokens: 20 + i})
				}
			}
			alone := askAll(t, e, rs)
			same(t, "in company", together(t, e, rs), alone)
			for i := range alone {
				if j := (i + 1) % 3; slices.Equal(alone[i].tokens, alone[i/3*3+j].tokens) {
					t.Errorf("requests %d and %d, with adapters %q and %q, have the same answer", i, i/3*3+j, rs[i].Adapter, rs[i/3*3+j].Adapter)
				}
			}
			if _, err := e.Generate(context.Background(), engine.Request{Prompt: prompt("a"), Adapter: "three"}); err == nil || !strings.Contains(err.Error(), `no adapter "three"`) {
				t.Errorf("an adapter that the model does not have: %v", err)
			}
		})
	}
}

// Restored keys and values are those of the adapter that computed them, also where the
// deployment shares a prefix.
func TestPrefixesAreFoundUnderTheirAdapterAlone(t *testing.T) {
	o := adapted(t)
	text := strings.Repeat("The fleet keeps every model. ", 30)
	o.CacheMemory, o.SharedPrefixes, o.SharedScope = mebi, []string{text[:600]}, "team"
	var rs []engine.Request
	for _, adapter := range []string{"", "one", "two", "", "one", "two"} {
		rs = append(rs, engine.Request{Prompt: &text, Adapter: adapter, Sampling: draws(1), MaxTokens: 12})
	}
	got := askAll(t, ready(t, o, ref.Options{}), rs)
	for i, a := range got {
		if cached := a.finished.Usage.Cached; (cached > 0) != (i >= 3) {
			t.Errorf("request %d with adapter %q continues from %d cached tokens", i, rs[i].Adapter, cached)
		}
	}
	sameButCached(t, "restored", got[3:], got[:3])
}

func TestAdaptersCountAgainstTheLimit(t *testing.T) {
	o := adapted(t)
	bare := o
	bare.Adapters = nil
	e := ready(t, bare, ref.Options{})
	alone, both := e.Status(), ready(t, o, ref.Options{}).Status()
	least, all := engine.Overhead(e)+alone.LoadBytes, both.LoadBytes-alone.LoadBytes
	if held := both.Memory.Weights - alone.Memory.Weights; all <= 0 || all != held || both.LoadedBytes != both.LoadBytes {
		t.Fatalf("adapters of %d bytes take %d; %d of %d bytes were loaded", all, held, both.LoadedBytes, both.LoadBytes)
	}
	o.LimitBytes = least + all - 1
	refused := start(t, o, ref.Options{})
	if err := refused.AwaitReady(t.Context()); !errors.Is(err, tensor.ErrMemory) || refused.Status().LoadedBytes > 0 {
		t.Errorf("with room for the model alone: %v, after %d bytes were loaded", err, refused.Status().LoadedBytes)
	}
	o.LimitBytes = least + all + 1<<20 // a back end rounds up
	if err := start(t, o, ref.Options{}).AwaitReady(t.Context()); err != nil {
		t.Errorf("with room for both: %v", err)
	}
}
