package intake

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttackResponsesThatNobodyReads: complete requests of clients that read nothing hold no
// connection that another client needs. Without such a client a slow reader keeps its own.
func TestAttackResponsesThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(bubble *testing.T) {
		f := newFront(bubble, 4, 3, 1<<20)
		unread := func() net.Conn {
			c := f.dial("10.0.0.1")
			if _, err := io.WriteString(c, strings.Replace(small, "POST / ", "POST /long ", 1)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return c
		}
		first := unread()
		time.Sleep(time.Millisecond)
		second, third := unread(), unread()
		hold := f.dial("10.0.0.2")
		go func() { _, _ = io.WriteString(hold, strings.Replace(small, "POST / ", "POST /hold ", 1)) }()
		synctest.Wait()
		if status := f.ask(t, "10.0.0.3", small); status != http.StatusServiceUnavailable {
			t.Errorf("a client gets %d as long as the others may be about to read", status)
		}
		time.Sleep(10 * stallTime)
		if n := f.conns.Count(); n != 4 {
			t.Fatalf("%d connections without a client that needs one", n)
		}
		if status := f.ask(t, "10.0.0.3", small); status != http.StatusOK {
			t.Errorf("another client gets %d", status)
		}
		if n, _ := io.Copy(io.Discard, first); n != 0 {
			t.Errorf("the client that has read nothing for longest gets %d bytes", n)
		}
		if status := answer(t, second, ""); status != http.StatusOK {
			t.Errorf("a slow reader gets %d although there is room", status)
		}
		unread() // in place of the one that was closed
		if status := f.ask(t, "10.0.0.1", small); status != http.StatusOK {
			t.Errorf("another client at the same address gets %d", status)
		}
		if n, _ := io.Copy(io.Discard, third); n != 0 {
			t.Errorf("the one that stalled gets %d bytes", n)
		}
		f.hold <- struct{}{}
		if status := answer(t, hold, ""); status != http.StatusOK {
			t.Errorf("a request that was not answered yet gets %d", status)
		}
	})
}

// TestClientsThatDoNotReadAreFew: each of them has what its Mac sends ahead in memory. One that
// reads a little now and then is no better, and each client has as large a part.
func TestClientsThatDoNotReadAreFew(t *testing.T) {
	synctest.Test(t, func(bubble *testing.T) {
		f := newFront(bubble, 0, 0, 1<<20)
		f.conns.Unread = 4
		unread := func(from string) net.Conn {
			c := f.dial(from)
			if _, err := io.WriteString(c, strings.Replace(small, "POST / ", "POST /long ", 1)); err != nil {
				t.Fatal(err)
			}
			return c
		}
		gone := func(all []net.Conn) (n int) {
			for _, c := range all {
				if c.SetReadDeadline(time.Time{}) != nil { // the other end is closed
					n++
				}
			}
			return n
		}
		var many, few []net.Conn
		for range 2 {
			few = append(few, unread("10.0.0.2"))
		}
		for range 6 {
			many = append(many, unread("10.0.0.1"))
		}
		defer many[5].Close()
		go func() { // a byte each time is nothing
			for _, err := many[5].Read(make([]byte, 1)); err == nil; _, err = many[5].Read(make([]byte, 1)) {
				time.Sleep(stallTime / 2)
			}
		}()
		if synctest.Wait(); f.conns.Count() != 8 {
			t.Fatalf("%d of 8 connections", f.conns.Count())
		}
		time.Sleep(3 * stallTime)
		if synctest.Wait(); f.conns.Count() != 4 || gone(many[:5]) < 3 || gone(few) != 0 {
			t.Errorf("%d connections are left; of those that do not read, %d of an address with many and %d of one with few have ended", f.conns.Count(), gone(many[:5]), gone(few))
		}
		if err := few[0].SetReadDeadline(time.Now().Add(stallTime)); err != nil {
			t.Fatal(err)
		}
		if n, _ := io.CopyN(io.Discard, few[0], 64<<10); n < 64<<10 {
			t.Errorf("one that reads later gets %d bytes", n)
		}
	})
}

// TestStrangersThatDoNotReadEndBeforeTenants: they may come from as many addresses as have a place.
func TestStrangersThatDoNotReadEndBeforeTenants(t *testing.T) {
	for _, keyed := range []bool{true, false} {
		l := &Listener{Total: 64, Unread: 4, Bodies: &Bodies{Keyed: keyed}}
		now := time.Now()
		long := now.Add(-time.Minute)
		enter := func(address string, late time.Time) context.Context {
			client, server := net.Pipe()
			t.Cleanup(func() { _ = client.Close() })
			c := newConn(server, l)
			l.enter(c, address)
			c.reads.left.Store(&late)
			return Context(context.Background(), c)
		}
		for range 4 {
			Know(enter("tenant", long))
		}
		for i := range 8 {
			enter(fmt.Sprint("stranger", i), now.Add(-2*stallTime))
		}
		tenants := 0
		for _, c := range l.tooMany(now) {
			if c.known.Load() {
				tenants++
			}
		}
		if want := map[bool]int{true: 0, false: 3}[keyed]; tenants < want || keyed && tenants > 0 {
			t.Errorf("keyed %t: %d of 4 connections of a tenant are closed, want %d", keyed, tenants, want)
		}
	}
}
