package intake

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestHeadsWithoutAKeyGiveWayToTenants: heads of any number of addresses fill the memory, and none
// of them takes what a tenant has or needs. Without keys, all addresses share.
func TestHeadsWithoutAKeyGiveWayToTenants(t *testing.T) {
	const addresses, each = 64, 16 << 10
	for _, keyed := range []bool{true, false} {
		b := &Bodies{Max: addresses * each, Keyed: keyed}
		cut := 0
		strangers := make([]headRoom, addresses)
		for i := range strangers {
			strangers[i].bodies = b
			if !strangers[i].grow(fmt.Sprint("10.0.0.", i), each, func() { cut++ }) {
				t.Fatal("there is no memory for the first heads")
			}
		}
		upload := func(size int) (kept Kept, err error) {
			_, kept, err = b.Read(io.LimitReader(strings.NewReader(strings.Repeat(" ", size)), int64(size)), "tenant", int64(size), 1<<20, func() { t.Error("a tenant's body gave way") })
			return kept, err
		}
		kept, err := upload(2 * each)
		if (err == nil) != keyed {
			t.Errorf("keyed %t: a tenant's body gets %v", keyed, err)
		}
		if !keyed {
			continue
		}
		if _, err := upload(4 * each); err != nil || cut == 0 {
			t.Errorf("a tenant's second body gets %v, and %d heads gave way", err, cut)
		}
		held := &headRoom{bodies: b}
		if !held.grow("10.0.1.1", each, func() { t.Error("a head with a key gave way") }) || held.own("tenant") != nil {
			t.Error("there is no memory for a tenant's head")
		}
		for i := range 2 * addresses {
			late := &headRoom{bodies: b}
			late.grow(fmt.Sprint("10.0.2.", i), each, func() {})
		}
		kept.Release()
	}
}

// TestConnectionsWithoutAKeyGiveWayToTenants: idle ones of many addresses are closed before the
// uploads of a tenant's address, which has more connections than each of these.
func TestConnectionsWithoutAKeyGiveWayToTenants(t *testing.T) {
	for _, keyed := range []bool{true, false} {
		l := &Listener{Total: 64, Bodies: &Bodies{Keyed: keyed}}
		enter := func(address string) (*Conn, context.Context, reason) {
			client, server := net.Pipe()
			t.Cleanup(func() { _ = client.Close() })
			c := newConn(server, l)
			_, why := l.enter(c, address)
			return c, Context(context.Background(), c), why
		}
		var mine []*Conn
		for range 8 { // uploads
			c, ctx, _ := enter("tenant")
			Know(ctx)
			mine = append(mine, c)
		}
		for range 8 { // idle between requests
			c, ctx, _ := enter("tenant")
			Know(ctx)
			Arrived(ctx)
			c.ended()
			mine = append(mine, c)
		}
		for i := range 24 {
			c, ctx, _ := enter(fmt.Sprint("idle", i))
			Arrived(ctx)
			c.ended()
		}
		for i := range 24 {
			c, _, _ := enter(fmt.Sprint("silent", i))
			c.entered = time.Now().Add(-strangerTime)
		}
		for i := range 48 {
			address := "tenant"
			if i%2 == 1 {
				address = fmt.Sprint("late", i)
			}
			_, ctx, why := enter(address)
			if Know(ctx); why != replaced {
				t.Errorf("a connection is %q, want %q", why, replaced)
			}
		}
		cut := 0
		for _, c := range mine {
			if c.gone {
				cut++
			}
		}
		if (cut == 0) != keyed {
			t.Errorf("keyed %t: %d connections of the tenant are closed", keyed, cut)
		}
	}
}

// TestAHeadCostsTheSameNextToMany: they may come from as many addresses, and need room with each
// piece.
func TestAHeadCostsTheSameNextToMany(t *testing.T) {
	const n, each = 4000, 16 << 10
	for _, keyed := range []bool{true, false} {
		t.Run(fmt.Sprint("keys ", keyed), func(t *testing.T) {
			sameCost(t, func(crowd int) time.Duration {
				b := &Bodies{Max: int64(crowd) * each, Keyed: keyed}
				heads := make([]headRoom, 2*crowd+n)
				var cut []int
				next := func(i int) {
					heads[i].bodies = b
					if !heads[i].grow(fmt.Sprint("10.0.0.", i), each+int64(i%7), func() { cut = append(cut, i) }) {
						cut = append(cut, i)
					}
					for _, i := range cut {
						heads[i].release(true)
					}
					cut = cut[:0]
				}
				for i := range 2 * crowd {
					next(i)
				}
				before := processorTime(t)
				for i := range n {
					next(2*crowd + i)
				}
				return (processorTime(t) - before) / n
			})
		})
	}
}

// TestAFloodWithoutAKeyClosesNoConnectionWithOne: more connections a second than there are places, of
// any number of addresses. Those whose clients have a key stay, and new ones have time to send it.
func TestAFloodWithoutAKeyClosesNoConnectionWithOne(t *testing.T) {
	l := &Listener{Total: 64, Bodies: &Bodies{Keyed: true}}
	enter := func(address string) (*Conn, context.Context) {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		c := newConn(server, l)
		_, _ = l.enter(c, address)
		return c, Context(context.Background(), c)
	}
	var mine []*Conn
	for i := range 16 {
		c, ctx := enter("tenant")
		Know(ctx)
		if Arrived(ctx); i%2 == 0 {
			c.ended()
		}
		mine = append(mine, c)
	}
	for i := range 256 {
		_, _ = enter(fmt.Sprint("flood", i%40))
		if i%32 == 31 {
			c, ctx := enter("tenant")
			if c.address == nil {
				t.Fatalf("connection %d of the tenant is refused", len(mine))
			}
			for j := range l.Total / strangerShare {
				_, _ = enter(fmt.Sprint("more", j))
			}
			Know(ctx)
			mine = append(mine, c)
		}
	}
	for i, c := range mine {
		if c.gone {
			t.Errorf("connection %d of the tenant is closed", i)
		}
	}
}

// TestNewConnectionsWithoutAKeyLeaveOthersTime: where more come in a second than there are places for, those of
// few addresses give way to each other, and those of many in the order in which they came.
func TestNewConnectionsWithoutAKeyLeaveOthersTime(t *testing.T) {
	const mine = 3
	for _, tc := range []struct{ addresses, more, cut int }{{3, 5000, 0}, {16, 5000, 0}, {5000, 126, 0}, {5000, 128, 2}} {
		synctest.Test(t, func(t *testing.T) {
			l := &Listener{Total: 1024, Bodies: &Bodies{Keyed: true}}
			enter := func(address string) *Conn {
				c := newConn(nil, l)
				if _, why := l.enter(c, address); why != "" && why != replaced {
					t.Fatalf("a connection is %q, want %q", why, replaced)
				}
				return c
			}
			for i := range l.Total - l.Total/strangerShare {
				Know(Context(t.Context(), enter(fmt.Sprint("known", i%8))))
			}
			for i := range l.Total/strangerShare + 1 {
				enter(fmt.Sprint("flood", i%tc.addresses))
			}
			var all []*Conn
			for range mine {
				all = append(all, enter("tenant"))
			}
			for i := range tc.more {
				enter(fmt.Sprint("flood", (i+200)%tc.addresses))
			}
			if all = slices.DeleteFunc(all, func(c *Conn) bool { return c.gone }); mine-len(all) != tc.cut {
				t.Errorf("%d of %d connections are closed for %d more of %d addresses, want %d", mine-len(all), mine, tc.more, tc.addresses, tc.cut)
			}
		})
	}
}

// TestAnIdleConnectionGivesWayBeforeOneIsRefused: idle ones of addresses that have fewer than the
// newcomer's would otherwise keep it out.
func TestAnIdleConnectionGivesWayBeforeOneIsRefused(t *testing.T) {
	l := &Listener{Total: 64, Bodies: &Bodies{}}
	enter := func(address string, idle bool) reason {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		c := newConn(server, l)
		_, why := l.enter(c, address)
		if why != noTotal {
			Arrived(Context(context.Background(), c))
		}
		if idle {
			c.ended()
		}
		return why
	}
	for range 16 {
		enter("busy", false)
	}
	for i := range 48 {
		enter(fmt.Sprint("idle", i%24), true)
	}
	for i := range 48 {
		if why := enter("busy", false); why != replaced {
			t.Errorf("connection %d is %q, want %q", i, why, replaced)
		}
	}
	if why := enter("busy", false); why != noTotal {
		t.Errorf("a connection next to others that all serve is %q, want %q", why, noTotal)
	}
}

// TestAnUploadWithAKeyOutlivesRequestsWithoutOne: at the limit of an address that many clients share, such as
// that of a proxy, connections whose requests without a key pause or have ended give way first.
func TestAnUploadWithAKeyOutlivesRequestsWithoutOne(t *testing.T) {
	l := &Listener{PerAddress: 4, Bodies: &Bodies{Keyed: true}}
	enter := func() (*Conn, context.Context) {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		c := newConn(server, l)
		_, _ = l.enter(c, "proxy")
		return c, Context(context.Background(), c)
	}
	upload, ctx := enter()
	Know(ctx)
	for i := range 4 * l.PerAddress {
		c, ctx := enter()
		if Arrived(ctx); i%2 == 0 {
			Pause(ctx)
		} else {
			c.ended()
		}
	}
	if upload.gone {
		t.Error("a request with a key that is being sent is closed, and those without one stay")
	}
}

// TestHeadsOfRequestsThatWaitGiveWay: also complete ones, as long as the requests may not begin.
func TestHeadsOfRequestsThatWaitGiveWay(t *testing.T) {
	const each = 16 << 10
	b := &Bodies{Max: 8 * each}
	l := &Listener{Bodies: b}
	cut := 0
	for i := range 8 {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		c := newConn(server, l)
		_, _ = l.enter(c, fmt.Sprint("10.0.0.", i))
		c.room.grow(c.address.name, each, func() { cut++ })
		ctx := Context(context.Background(), c)
		Arrived(ctx)
		Pause(ctx)
	}
	if kept, err := b.Hold("tenant", each/2); err != nil || cut == 0 {
		t.Errorf("a tenant gets %v while requests wait, and %d heads gave way", err, cut)
	} else {
		kept.Release()
	}
}
