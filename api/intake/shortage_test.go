package intake

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// short fails to accept until the shortage is over.
type short struct {
	*pipes
	err  error
	left *atomic.Int64
}

func (s short) Accept() (net.Conn, error) {
	if s.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept", s.err)}
	}
	return s.pipes.Accept()
}

// TestAServerOutlastsAShortage: what the system has none of now, such as the watches of the user that
// another process took, it has later. A server that ended would end the agent with it.
func TestAServerOutlastsAShortage(t *testing.T) {
	for _, c := range []struct {
		name string
		wrap func(net.Listener) net.Listener
	}{
		{"of a port", Port},
		{"that authenticates", func(l net.Listener) net.Listener {
			return Authenticate(l, &tls.Config{}, log.New(io.Discard, "", 0))
		}},
	} {
		for _, err := range []error{syscall.ENOSPC, syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE} {
			t.Run(c.name+" "+err.Error(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var left atomic.Int64
					left.Store(20)
					l := short{pipes: newPipes(), err: err, left: &left}
					s := PortServer(http.NotFoundHandler(), log.New(io.Discard, "", 0))
					ended := make(chan error, 1)
					go func() { ended <- s.Serve(c.wrap(l)) }()
					began := time.Now()
					synctest.Wait()
					for left.Load() >= 0 && len(ended) == 0 && time.Since(began) < time.Minute {
						time.Sleep(time.Second)
						synctest.Wait()
					}
					if waited := time.Since(began); left.Load() >= 0 || waited < 5*time.Second {
						t.Errorf("%d failures were left after %v", left.Load(), waited)
					}
					_ = s.Close()
					if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
						t.Errorf("the server ended: %v", err)
					}
				})
			})
		}
	}
}
