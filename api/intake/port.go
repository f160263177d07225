package intake

import (
	"context"
	"log"
	"net"
	"net/http"
	"time"
)

const (
	// portConnections of a port for probes and metrics, and of them those of one address.
	portConnections, portConnectionsPerAddress = 64, 16
	// portHeaderBytes fit the token of an account.
	portHeaderBytes = 16 << 10
	portTimeout     = 5 * time.Second
	portIdle        = 2 * time.Minute
	// portTarget is the length of a request's target: a redirect to it, at five bytes for one, is written whole
	// after its request has ended, so that a client that does not read it gives way.
	portTarget = 512
	portWrite  = 30 * time.Second
	// portPause is the least time between the beginnings of two requests of a connection.
	portPause = 20 * time.Millisecond
)

// Port bounds the connections of a port for probes or metrics.
func Port(l net.Listener) net.Listener {
	return &Listener{Listener: l, Total: portConnections, PerAddress: portConnectionsPerAddress, Silent: true}
}

// PortServer returns the server of a port for probes or metrics. Anyone may connect there,
// so a connection uses little memory. Serve it on a Port, which TLS may wrap.
func PortServer(h http.Handler, failures *log.Logger) *http.Server {
	short := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !paced(r) {
			return // it gave way
		}
		if len(r.RequestURI) > portTarget {
			w.WriteHeader(http.StatusRequestURITooLong)
			return
		}
		h.ServeHTTP(w, r)
	})
	return &http.Server{Handler: Guard(short), ConnContext: Context, DisableGeneralOptionsHandler: true, ErrorLog: failures,
		ReadTimeout: portTimeout, WriteTimeout: portWrite, IdleTimeout: portIdle, MaxHeaderBytes: portHeaderBytes}
}

// Turn counts a request, and returns how long it waits until portPause after the last one of its connection.
// A connection that always has a next request would keep a processor for a slice of the scheduler's time
// at each turn. The first request, such as that of a probe, waits for nothing.
func Turn(ctx context.Context) time.Duration {
	c, ok := ctx.Value(connKey{}).(*Conn)
	if !ok {
		return 0
	}
	wait := max(0, time.Until(c.next))
	c.next = time.Now().Add(wait + portPause)
	return wait
}

// paced waits for the turn of a request, and returns false if its connection ends meanwhile: it gives way
// to others.
func paced(r *http.Request) bool {
	wait := Turn(r.Context())
	if wait == 0 {
		return true
	}
	Pause(r.Context())
	enough := time.NewTimer(wait)
	defer enough.Stop()
	select {
	case <-enough.C:
	case <-r.Context().Done():
		return false
	}
	if r.Body == http.NoBody {
		Arrived(r.Context())
	}
	return true
}
