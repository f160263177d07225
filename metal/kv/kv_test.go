package kv_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
)

var origin = kv.Origin{Model: "sha256:aa", Numerics: "ref 1 float32", Layout: "blocks of 256"}

func TestKeyDependsOnEveryEarlierToken(t *testing.T) {
	blocks := [][]int32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
	last := func() kv.Key {
		k := kv.Root(origin, nil)
		for _, b := range blocks {
			k = k.Next(b)
		}
		return k
	}
	want := last()
	for _, b := range blocks {
		for i := range b {
			b[i]++
			if last() == want {
				t.Errorf("another token at %d of %v has the same key", i, b)
			}
			b[i]--
		}
	}
	if last() != want {
		t.Error("the same tokens have another key")
	}
}

func TestKeyDependsOnItsOrigin(t *testing.T) {
	seen := map[kv.Key]string{kv.Root(origin, nil): "the origin"}
	for name, k := range map[string]kv.Key{
		"other weights":     kv.Root(kv.Origin{Model: "sha256:ab", Numerics: origin.Numerics, Layout: origin.Layout}, nil),
		"other numerics":    kv.Root(kv.Origin{Model: origin.Model, Numerics: "mlx", Layout: origin.Layout}, nil),
		"another layout":    kv.Root(kv.Origin{Model: origin.Model, Numerics: origin.Numerics, Layout: "blocks of 512"}, nil),
		"an adapter":        kv.Root(origin, []byte("a")),
		"words moved":       kv.Root(kv.Origin{Model: "sha256:aar", Numerics: "ef 1 float32", Layout: origin.Layout}, nil),
		"a first block":     kv.Root(origin, nil).Next([]int32{1}),
		"a state":           kv.Root(origin, nil).State([]int32{1}),
		"a state of nobody": kv.Root(origin, nil).State(nil),
	} {
		if other, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[k] = name
	}
}

func TestAKeyIsReadAsItWasWritten(t *testing.T) {
	want := kv.Root(origin, nil)
	got, err := kv.ParseKey(want.String())
	if err != nil || got != want {
		t.Errorf("ParseKey(%s) = %s, %v", want, got, err)
	}
	for _, bad := range []string{"", want.String()[1:], want.String() + "00", "g" + want.String()[1:]} {
		if _, err := kv.ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) was taken", bad)
		}
	}
}
