package intake

import (
	"context"
	"fmt"
	"net"
	"testing"
)

// TestAttackATenantOfManyAddresses: its requests leave connections to other tenants.
func TestAttackATenantOfManyAddresses(t *testing.T) {
	l := &Listener{Total: 8}
	conns := map[string][]*Conn{}
	own := func(tenant string) (most int) {
		for range 8 {
			client, server := net.Pipe()
			t.Cleanup(func() { _ = client.Close() })
			c := newConn(server, l)
			if _, why := l.enter(c, fmt.Sprint(tenant, len(conns[tenant]))); why != "" && why != replaced {
				return most
			}
			ctx := Context(context.Background(), c)
			Arrived(ctx)
			for range 2 { // a request counts once
				if err := Own(ctx, tenant); err != nil {
					_ = c.Close()
					return most
				}
			}
			conns[tenant] = append(conns[tenant], c)
			most++
		}
		return most
	}
	for _, tc := range []struct {
		tenant string
		want   int
	}{{"a", 4}, {"b", 2}, {"c", 1}, {"d", 1}} {
		if got := own(tc.tenant); got != tc.want {
			t.Errorf("tenant %s has %d of 8 connections, want %d", tc.tenant, got, tc.want)
		}
	}
	for _, c := range conns["a"] {
		c.ended() // the request; its connection waits for another
	}
	if got := own("b"); got != 1 {
		t.Errorf("tenant b gets %d more when another has none, want 1", got)
	}
	for _, of := range conns {
		for _, c := range of {
			_ = c.Close()
		}
	}
	if l.inAll != 0 || len(l.owned) != 0 || l.count != 0 {
		t.Errorf("%d requests are counted without a connection", l.inAll)
	}
}

// TestARequestThatPausesGivesWay: until it continues, as one that has not arrived.
func TestARequestThatPausesGivesWay(t *testing.T) {
	l := &Listener{Total: 1}
	enter := func(address string) (*Conn, context.Context, reason) {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		c := newConn(server, l)
		_, why := l.enter(c, address)
		return c, Context(context.Background(), c), why
	}
	first, ctx, _ := enter("a")
	Pause(ctx) // one that has not arrived stays the first to give way
	if first.in != &first.address.fresh {
		t.Error("a connection without a complete request counts as one that had some")
	}
	Arrived(ctx)
	for range 2 {
		if _, _, why := enter("b"); why != noTotal {
			t.Errorf("another connection is %q, want %q", why, noTotal)
		}
		Pause(ctx)
		Arrived(ctx)
	}
	Pause(ctx)
	second, _, why := enter("b")
	if why != replaced || !first.gone {
		t.Errorf("another connection is %q, want %q", why, replaced)
	}
	Arrived(ctx) // it has noticed too late
	for _, c := range []*Conn{first, second} {
		_ = c.Close()
	}
	if l.count != 0 {
		t.Errorf("%d connections are counted", l.count)
	}
}

// TestManyAddressesThatServeLeaveConnections: their requests may take as long as they like, and
// give way to none.
func TestManyAddressesThatServeLeaveConnections(t *testing.T) {
	l := &Listener{Total: 64, PerAddress: 32}
	serve := func(address string, most int) (served int) {
		for range most {
			client, server := net.Pipe()
			t.Cleanup(func() { _ = client.Close() })
			c := newConn(server, l)
			if _, why := l.enter(c, address); why != "" {
				break
			}
			Arrived(Context(context.Background(), c))
			served++
		}
		return served
	}
	for _, tc := range []struct {
		address    string
		most, want int
	}{
		{"proxy", 32, 32}, {"a", 8, 8}, {"b", 8, 8}, {"c", 8, 8}, {"d", 8, 8}, // as many as there are
		{"a", 8, 0}, {"b", 8, 0}, {"proxy", 8, 0}, {"quiet", 8, 2}, {"other", 8, 2}, {"quiet", 8, 0}, {"third", 8, 2}, {"last", 8, 2}, {"late", 8, 0},
	} {
		if got := serve(tc.address, tc.most); got != tc.want {
			t.Errorf("%s gets %d connections next to %d others, want %d", tc.address, got, l.count-got, tc.want)
		}
	}
}
