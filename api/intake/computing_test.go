package intake

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
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

// TestAListenerComputesFewHandshakesAtOnce: those of clients that say nothing take no place.
func TestAListenerComputesFewHandshakesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, release := make(chan struct{}, 8), make(chan struct{})
		config := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			begun <- struct{}{}
			<-release
			return nil, errors.New("a stranger")
		}}
		p := newPipes()
		h := Authenticate(p, config, log.New(io.Discard, "", 0))
		h.computing = &Computing{make(chan struct{}, 2)}
		ended := make(chan struct{})
		go func() {
			_, _ = h.Accept()
			close(ended)
		}()
		for range 4 {
			p.dial("10.0.0.1") // says nothing
		}
		for range 6 {
			raw := p.dial("10.0.0.1")
			go func() { _ = tls.Client(raw, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context()) }()
		}
		synctest.Wait()
		if len(begun) != 2 {
			t.Errorf("%d handshakes are computed at once, want 2", len(begun))
		}
		close(release)
		synctest.Wait()
		if len(begun) != 6 || len(h.computing.places) != 0 {
			t.Errorf("%d handshakes of 6 were computed, and %d places are taken at the end", len(begun), len(h.computing.places))
		}
		_ = h.Close()
		<-ended
	})
}

// TestAnAuthenticatedConnectionHasNoDeadline: the one of its handshake has gone.
func TestAnAuthenticatedConnectionHasNoDeadline(t *testing.T) {
	own := certificateOf(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		h := Authenticate(p, &tls.Config{Certificates: []tls.Certificate{own}}, log.New(io.Discard, "", 0))
		defer h.Close()
		go func() {
			client := tls.Client(p.dial("10.0.0.1"), &tls.Config{InsecureSkipVerify: true})
			_ = client.Handshake()
			time.Sleep(2 * handshakeTimeout)
			_, _ = io.WriteString(client, "x")
		}()
		c, err := h.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}
