//go:build !race

package cold_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/test/seed"
)

func id(namespace, n int) cold.ID {
	var x cold.ID
	x.Namespace[0] = byte(namespace)
	binary.LittleEndian.PutUint64(x.Key[:], uint64(n))
	x.Key[len(x.Key)-1] = byte(n % 3) // its tenant
	return x
}

// plainIndex is an index as simple as it can be said.
type plainIndex struct{ foreign, blocks []cold.Entry }

func (p *plainIndex) drop(e cold.Entry) {
	same := func(o cold.Entry) bool { return o.ID == e.ID && o.Foreign == e.Foreign }
	p.foreign, p.blocks = slices.DeleteFunc(p.foreign, same), slices.DeleteFunc(p.blocks, same)
}

func (p *plainIndex) add(e cold.Entry) {
	p.drop(e)
	if e.Foreign != "" {
		p.foreign = append(p.foreign, e)
	} else {
		p.blocks = append(p.blocks, e)
	}
}

func (p *plainIndex) touch(e cold.Entry) {
	for _, o := range p.blocks {
		if o.ID == e.ID && e.Foreign == "" {
			p.add(o)
			return
		}
	}
}

// Order, totals and sums over random histories are those of a list.
func TestIndexEqualsItsPlainModel(t *testing.T) {
	seed := seed.Of(t)
	r := rand.New(rand.NewPCG(seed, 1))
	x, p := cold.NewIndex(), &plainIndex{}
	for step := range 20_000 {
		e := cold.Entry{ID: id(r.IntN(4), r.IntN(60)), Bytes: r.Int64N(1000)}
		if r.IntN(5) == 0 {
			e.ID, e.Foreign = cold.ID{}, strconv.Itoa(r.IntN(10))
		}
		switch r.IntN(4) {
		case 0, 1:
			p.add(e)
			if e.Foreign != "" {
				x.AddForeign(e.Foreign, e.Bytes)
			} else {
				x.Add(e.ID, e.Bytes)
			}
		case 2:
			p.touch(e)
			if e.Foreign == "" {
				x.Touch(e.ID)
			}
		default:
			p.drop(e)
			x.Forget(e)
		}
		if err := same(x, p); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}

func same(x *cold.Index, p *plainIndex) error {
	var got []cold.Entry
	x.Each(func(e cold.Entry) bool { got = append(got, e); return true })
	want := slices.Concat(p.foreign, p.blocks)
	if !slices.Equal(got, want) {
		return fmt.Errorf("order %v, want %v", got, want)
	}
	var total int64
	sums := map[cold.Namespace]cold.Sum{}
	tenants := map[string]cold.Sum{}
	for _, e := range want {
		total += e.Bytes
		if e.Foreign == "" {
			part := fmt.Sprint(e.ID.Namespace, e.ID.Key.Tenant())
			tenants[part] = cold.Sum{Blocks: tenants[part].Blocks + 1, Bytes: tenants[part].Bytes + e.Bytes}
			s := sums[e.ID.Namespace]
			sums[e.ID.Namespace] = cold.Sum{Blocks: s.Blocks + 1, Bytes: s.Bytes + e.Bytes}
		}
	}
	if x.Total() != total || x.Files() != len(want) || x.ForeignFiles() != len(p.foreign) || len(x.Namespaces()) != len(sums) {
		return fmt.Errorf("total %d of %d files, want %d of %d", x.Total(), x.Files(), total, len(want))
	}
	for n, s := range sums {
		if x.Sum(n) != s {
			return fmt.Errorf("namespace %s: %+v, want %+v", n, x.Sum(n), s)
		}
	}
	for p, sum := range x.Tenants() {
		part := fmt.Sprint(p.Namespace, p.Tenant)
		off := tenants[part]
		off.Blocks -= sum.Blocks
		off.Bytes -= sum.Bytes
		tenants[part] = off
	}
	for part, off := range tenants {
		if off != (cold.Sum{}) {
			return fmt.Errorf("%s is off by %+v", part, off)
		}
	}
	return nil
}

func anyBlock(cold.Entry) bool { return true }

// Foreign files first, then the least recently used.
func TestExcessFilesAreEvicted32AtATime(t *testing.T) {
	x := cold.NewIndex()
	for n := range 1990 {
		x.Add(id(0, n), 1)
	}
	for n := range 10 {
		x.AddForeign(strconv.Itoa(n), 1)
	}
	x.Touch(id(0, 0))
	calls, gone := 0, []cold.Entry{}
	for x.Total() > 1000 {
		plan := cold.Plan(x, 1000, cold.MaxUnlinks, anyBlock)
		if len(plan) > 32 || len(plan) < 32 && x.Total()-int64(len(plan)) > 1000 {
			t.Fatalf("call %d removes %d files", calls, len(plan))
		}
		for _, e := range plan {
			x.Forget(e)
		}
		gone = append(gone, plan...)
		calls++
	}
	if calls != 32 || x.Total() != 1000 {
		t.Errorf("%d calls until %d bytes", calls, x.Total())
	}
	if _, ok := x.Bytes(id(0, 0)); !ok || x.ForeignFiles() != 0 || gone[10].ID != id(0, 1) {
		t.Errorf("not the oldest first: %+v", gone[:12])
	}
}

func TestNothingIsEvictedWithoutNeed(t *testing.T) {
	x := cold.NewIndex()
	x.Add(id(0, 1), 10)
	x.Add(id(0, 2), 10)
	if plan := cold.Plan(x, 20, 32, anyBlock); plan != nil {
		t.Errorf("%+v is evicted", plan)
	}
	if plan := cold.Plan(x, 19, 32, anyBlock); len(plan) != 1 || plan[0].ID != id(0, 1) {
		t.Errorf("%+v is evicted", plan)
	}
	if plan := cold.Plan(x, -1, 32, anyBlock); len(plan) != 2 {
		t.Errorf("%+v is evicted", plan)
	}
	if plan := cold.Plan(x, 19, 32, func(e cold.Entry) bool { return e.ID != id(0, 1) }); len(plan) != 1 || plan[0].ID != id(0, 2) {
		t.Errorf("%+v is evicted, want the one block that may be", plan)
	}
}

func TestLimitFollowsFreeSpace(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		budget          cold.Budget
		own, free, want int64
	}{
		"a large disk that is nearly full": {budget: cold.Budget{LimitBytes: 100 * gib}, own: 0, free: 10 * gib, want: 10*gib/100*99 + 10*gib%100*99/100},
		"what is configured":               {budget: cold.Budget{LimitBytes: 5 * gib}, own: 0, free: 10 * gib, want: 5 * gib},
		"own bytes count as room":          {budget: cold.Budget{}, own: 100, free: 100, want: 198},
		"a floor stays free":               {budget: cold.Budget{FloorBytes: 50}, own: 100, free: 100, want: 148},
		"a floor above all there is":       {budget: cold.Budget{FloorBytes: gib}, own: 100, free: 100, want: 0},
		"others need space":                {budget: cold.Budget{AwaitedBytes: 100}, own: 100, free: 100, want: 99},
		"others need more than is free":    {budget: cold.Budget{AwaitedBytes: 150}, own: 100, free: 100, want: 49},
		"a spare part stays free":          {budget: cold.Budget{FloorBytes: 10, SpareBytes: 60}, own: 100, free: 100, want: 138},
		"at most half is spared":           {budget: cold.Budget{FloorBytes: 10, SpareBytes: 600}, own: 100, free: 100, want: 98},
		"half of what others leave":        {budget: cold.Budget{AwaitedBytes: 100, SpareBytes: 600}, own: 100, free: 100, want: 49},
		"a share":                          {budget: cold.Budget{Percent: 50}, own: 0, free: 201, want: 100},
		"a figure that makes no sense":     {budget: cold.Budget{}, own: 0, free: -5, want: 0},
		"a disk of the largest size":       {budget: cold.Budget{}, own: 0, free: 1<<62 + 1<<61, want: (1<<62+1<<61)/100*99 + (1<<62+1<<61)%100*99/100},
	} {
		if got := cold.Limit(c.budget, c.own, c.free); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestFreeSpaceIsCachedFor30Seconds(t *testing.T) {
	now := time.Unix(1000, 0)
	r := cold.RoomOf(10, 90, now)
	for after, want := range map[time.Duration]bool{0: true, 30*time.Second - 1: true, 30 * time.Second: false, -1: false} {
		if r.Known(now.Add(after)) != want {
			t.Errorf("after %s believed: %t", after, !want)
		}
	}
	if (cold.Room{}).Known(time.Time{}) || (cold.Room{}).Limit(cold.Budget{LimitBytes: 5}) != 0 {
		t.Error("what was never read is believed")
	}
	if got := r.Limit(cold.Budget{}); got != 99 {
		t.Errorf("limit %d", got)
	}
}

var _ kv.Tier = (*cold.Tier)(nil)
