package intake

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestHandshakesAreComputedOneAfterAnother: while one waits for its client, another is computed, and
// none for a client that was closed meanwhile.
func TestHandshakesAreComputedOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		computing := &Computing{make(chan struct{}, 1)}
		limited := func() (*Limited, net.Conn) {
			client, server := net.Pipe()
			t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
			return Limit(server), client
		}
		begin := func(l *Limited) error { return l.Compute(computing, time.Now().Add(time.Hour)) }
		one, client := limited()
		other, _ := limited()
		closed, _ := limited()
		if err := begin(one); err != nil {
			t.Fatal(err)
		}
		begun, read := make(chan error, 1), make(chan error, 1)
		go func() { begun <- begin(other) }()
		synctest.Wait()
		if len(begun) > 0 {
			t.Fatal("two are computed at once")
		}
		go func() {
			_, err := one.Read(make([]byte, 1))
			read <- err
		}()
		if err := <-begun; err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(client, "x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(read) > 0 {
			t.Error("one is computed while another is")
		}
		other.End()
		if err := <-read; err != nil {
			t.Error(err)
		}
		if one.Lift(); len(computing.places) > 0 {
			t.Errorf("%d places are taken at the end", len(computing.places))
		}
		_ = closed.Close()
		if err := begin(closed); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the handshake of a closed connection begins: %v", err)
		}
		closed.End()
	})
}
