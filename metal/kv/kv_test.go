package kv_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
)

var origin = kv.Origin{Model: "sha256:aa", Numerics: "ref 1 float32", Layout: "blocks of 256"}

func TestKeyDependsOnEveryEarlierToken(t *testing.T) {
	blocks := [][]int32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
	last := func() kv.Key {
		k := kv.Root(origin, kv.Salt{})
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
	seen := map[kv.Key]string{kv.Root(origin, kv.Salt{}): "the origin"}
	for name, k := range map[string]kv.Key{
		"other weights":            kv.Root(kv.Origin{Model: "sha256:ab", Numerics: origin.Numerics, Layout: origin.Layout}, kv.Salt{}),
		"other numerics":           kv.Root(kv.Origin{Model: origin.Model, Numerics: "mlx", Layout: origin.Layout}, kv.Salt{}),
		"another layout":           kv.Root(kv.Origin{Model: origin.Model, Numerics: origin.Numerics, Layout: "blocks of 512"}, kv.Salt{}),
		"a tenant":                 kv.Root(origin, kv.Salt{Tenant: "a"}),
		"another tenant":           kv.Root(origin, kv.Salt{Tenant: "b"}),
		"a salt":                   kv.Root(origin, kv.Salt{Extra: "a"}),
		"both":                     kv.Root(origin, kv.Salt{Tenant: "a", Extra: "a"}),
		"words moved":              kv.Root(kv.Origin{Model: "sha256:aar", Numerics: "ef 1 float32", Layout: origin.Layout}, kv.Salt{}),
		"a first block":            kv.Root(origin, kv.Salt{}).Next([]int32{1}),
		"a state":                  kv.Root(origin, kv.Salt{}).State([]int32{1}),
		"a state without a tenant": kv.Root(origin, kv.Salt{}).State(nil),
	} {
		if other, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[k] = name
	}
}

func TestAKeyIsReadAsItWasWritten(t *testing.T) {
	want := kv.Root(origin, kv.Salt{})
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

func TestAKeyNamesItsTenant(t *testing.T) {
	for _, tenant := range []string{"", "a", "b"} {
		k := kv.Root(origin, kv.Salt{Tenant: tenant, Extra: "x"})
		want := kv.TenantOf(tenant)
		if k.Tenant() != want || k.Next([]int32{1}).Next([]int32{2}).Tenant() != want || k.State([]int32{1}).Tenant() != want {
			t.Errorf("tenant %q: a key names %d, want %d", tenant, k.Tenant(), want)
		}
		if (want == 0) != (tenant == "") {
			t.Errorf("tenant %q is %d", tenant, want)
		}
	}
}
