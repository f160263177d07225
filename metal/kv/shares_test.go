package kv_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
)

// tenants are a memory that is used by several.
type tenants struct {
	t *testing.T
	m *kv.Memory
}

func tenantKey(tenant string, n int) kv.Key {
	return kv.Root(kv.Origin{Model: "m"}, kv.Salt{Tenant: tenant}).Next([]int32{int32(n)})
}

func (x tenants) put(tenant string, from, to int) {
	x.t.Helper()
	for n := from; n < to; n++ {
		if x.m.Put(tenantKey(tenant, n), kvtest.Payload(n, 100)) != kv.Held {
			x.t.Fatalf("block %d of %s was not taken", n, tenant)
		}
	}
}

func (x tenants) kept(tenant string, from, to int) (count int) {
	for n := from; n < to; n++ {
		if x.m.Has(tenantKey(tenant, n)) {
			count++
		}
	}
	return count
}

// A tenant alone fills the memory, and others who come take from the one with the most.
func TestTenantsShareTheMemory(t *testing.T) {
	x := tenants{t: t, m: kv.NewMemory(20*page, nil)}
	defer x.m.Close(t.Context())
	x.put("hog", 0, 30)
	if n := x.kept("hog", 10, 30); n != 20 {
		t.Errorf("a tenant alone has %d of 20 blocks, or not its newest", n)
	}
	x.put("small", 0, 4)
	x.put("hog", 30, 60)
	if n := x.kept("small", 0, 4); n != 4 {
		t.Errorf("%d of 4 blocks are left, and 16 of the other tenant", n)
	}
	x.put("late", 0, 20)
	if hog, late, small := x.kept("hog", 0, 60), x.kept("late", 0, 20), x.kept("small", 0, 4); hog < 7 || late < 7 || hog+late != 16 || small != 4 {
		t.Errorf("three tenants have %d, %d and %d of 20 blocks", hog, late, small)
	}
	h, _ := x.m.Pin(tenantKey("small", 0))
	if given := x.m.Resize(6 * page); given != 14*page || x.kept("small", 0, 4) != 2 {
		t.Errorf("%d pages came back, and %d of 4 blocks of the smallest tenant are left", given/page, x.kept("small", 0, 4))
	}
	x.m.Unpin([]kv.Pinned{h})
}

// A tenant keeps its share while it uses it, and loses it when it is idle.
func TestAnIdleTenantHasNoShareOfTheMemory(t *testing.T) {
	x := tenants{t: t, m: kv.NewMemory(10*page, nil)}
	defer x.m.Close(t.Context())
	x.put("away", 0, 3)
	x.put("reader", 0, 3)
	for n := range 45 { // more than four times the budget
		x.put("busy", n, n+1)
		if v, err := x.m.View(tenantKey("reader", 0)); err != nil {
			t.Fatalf("after %d blocks: %v", n, err)
		} else {
			v.Close()
		}
	}
	if away, reader := x.kept("away", 0, 3), x.kept("reader", 0, 3); away != 0 || reader != 3 {
		t.Errorf("%d blocks of an idle tenant are left, and %d of one that reads", away, reader)
	}
}
