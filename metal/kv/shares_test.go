package kv_test

import (
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/test/seed"
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

// Requests that take most of the budget for a while make no tenant idle.
func TestATenantIsNotIdleWhileTheBudgetIsSmall(t *testing.T) {
	x := tenants{t: t, m: kv.NewMemory(20*page, nil)}
	defer x.m.Close(t.Context())
	x.put("quiet", 0, 2)
	x.m.Resize(6 * page)
	x.put("busy", 0, 40) // more than four times what is left
	if quiet := x.kept("quiet", 0, 2); quiet != 2 {
		t.Errorf("%d of 2 blocks of a tenant are left after another stored twice the memory", quiet)
	}
}

// pin pins blocks of a tenant, as requests do that wait.
func (x tenants) pin(tenant string, from, to int) (all []kv.Pinned) {
	x.t.Helper()
	for n := from; n < to; n++ {
		h, ok := x.m.Pin(tenantKey(tenant, n))
		if !ok {
			x.t.Fatalf("block %d of %s is not there", n, tenant)
		}
		all = append(all, h)
	}
	return all
}

// A tenant whose requests wait pins what they will use, and keeps no more than its share when
// others come.
func TestPinsLeaveTheSharesOfOthers(t *testing.T) {
	x := tenants{t: t, m: kv.NewMemory(20*page, nil)}
	defer x.m.Close(t.Context())
	x.put("hog", 0, 20)
	pins := x.pin("hog", 0, 20)
	x.put("late", 0, 30)
	if late, hog := x.kept("late", 20, 30), x.kept("hog", 10, 20); late != 10 || hog != 10 {
		t.Errorf("%d and %d blocks are left, of 20 for two tenants", late, hog)
	}
	x.m.Unpin(pins)
	if n := x.m.Counted(); n != 0 {
		t.Errorf("%d bytes are counted as pinned after all were unpinned", n)
	}
}

// A tenant that has pinned all its blocks, and more than its share, takes none of others.
func TestPinsDoNotGrowOverOthers(t *testing.T) {
	x := tenants{t: t, m: kv.NewMemory(20*page, nil)}
	defer x.m.Close(t.Context())
	x.put("small", 0, 15)
	for n := range 40 {
		if x.m.Put(tenantKey("hog", n), kvtest.Payload(n, 100)) != kv.Held {
			continue
		}
		x.pin("hog", n, n+1)
		x.m.Prepare(100, 4)
		x.m.AwaitPrepared()
	}
	// Room that was prepared is anyone's.
	if small, hog := x.kept("small", 0, 15), x.kept("hog", 0, 40); small < 10-4 || hog < 9 {
		t.Errorf("%d blocks are left to a tenant, and the one that pins has %d of 20", small, hog)
	}
}

// TestRandomPinsKeepTheShares: regardless of what tenants pin, one within an equal share
// gets each block, and takes none of a tenant that has less.
func TestRandomPinsKeepTheShares(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.Of(t), 3))
	names := []string{"a", "b", "c"}
	for range 20 {
		const pages = 24
		x := tenants{t: t, m: kv.NewMemory(pages*page, nil)}
		pins := map[string][]kv.Pinned{}
		for step := range 200 {
			name := names[rng.IntN(len(names))]
			before, with := map[string]int{}, 0
			for _, other := range names {
				if before[other] = x.kept(other, 0, 60); before[other] > 0 || other == name {
					with++
				}
			}
			n := rng.IntN(60)
			if rng.IntN(8) == 0 {
				x.m.Unpin(pins[name])
				pins[name] = nil
				continue
			}
			had := x.m.Has(tenantKey(name, n))
			saved := x.m.Put(tenantKey(name, n), kvtest.Payload(n, 100))
			if !had && saved != kv.Held && before[name]+1 <= pages/with {
				t.Fatalf("step %d: %s has %d of %d blocks for %d tenants, and gets none", step, name, before[name], pages, with)
			}
			for _, other := range names {
				if now := x.kept(other, 0, 60); other != name && now < before[other] && before[other] < before[name] {
					t.Fatalf("step %d: %s has %d blocks and takes one of the %d of %s", step, name, before[name], before[other], other)
				}
			}
			if h, ok := x.m.Pin(tenantKey(name, n)); ok && rng.IntN(3) > 0 {
				pins[name] = append(pins[name], h)
			} else if ok {
				x.m.Unpin([]kv.Pinned{h})
			}
		}
		for _, all := range pins {
			x.m.Unpin(all)
		}
		if n := x.m.Counted(); n != 0 {
			t.Fatalf("%d bytes are counted as pinned", n)
		}
		x.m.Close(t.Context())
	}
}
