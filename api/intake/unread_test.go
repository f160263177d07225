package intake

import (
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
