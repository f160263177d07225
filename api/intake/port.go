package intake

import (
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
	// portTurns in each second, for each processor, take a twentieth of its time.
	portTurns = 1000
	// portHeadLines of a request take little time.
	portHeadLines = 64
)

// Port bounds the connections of a port for probes or metrics, without TLS.
func Port(l net.Listener) net.Listener {
	p := port(l)
	p.HeadLines = portHeadLines
	return p
}

// TLSPort is Port for connections with TLS, whose heads it does not see.
func TLSPort(l net.Listener) net.Listener { return port(l) }

func port(l net.Listener) *Listener {
	return &Listener{Listener: l, Total: portConnections, PerAddress: portConnectionsPerAddress, Turns: portTurns, Silent: true}
}

// PortServer returns the server of a port for probes or metrics. Anyone may connect there,
// so a connection uses little memory. Serve it on a Port, or with TLS on a TLSPort.
func PortServer(h http.Handler, failures *log.Logger) *http.Server {
	short := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > portTarget {
			w.WriteHeader(http.StatusRequestURITooLong)
			return
		}
		h.ServeHTTP(w, r)
	})
	return &http.Server{Handler: Guard(short), ConnContext: Context, DisableGeneralOptionsHandler: true, ErrorLog: failures,
		ReadTimeout: portTimeout, WriteTimeout: portWrite, IdleTimeout: portIdle, MaxHeaderBytes: portHeaderBytes}
}
