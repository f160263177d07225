package peer

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/agentapi"
)

// GivesAtOnce is the default number of peers that may copy at a time, and
// GiveRate that of their bytes per second together: requests for models have
// priority.
const (
	GivesAtOnce = 2
	GiveRate    = 200_000_000
)

// pieceBytes is the most that is read at once.
const pieceBytes = 256 << 10

// Weights are the weights on this Mac; *store.Store implements it.
type Weights interface {
	Give(digest, source, tokenRef, sha256 string) (*os.File, error)
}

// Server serves weights to peers. Make one with NewServer.
type Server struct {
	mac     string
	roots   func() []*x509.Certificate
	weights Weights
	slots   *slots
	rates   rates
	limit   *rate.Limiter // never nil
	given   func(n int)
	log     logr.Logger
	// revoked reports whether the MacNode with a UID was deleted.
	revoked func(uid string) bool
}

// ServerConfig configures a Server.
type ServerConfig struct {
	// Mac is the name of this Mac, and Roots returns the trusted roots.
	Mac     string
	Roots   func() []*x509.Certificate
	Weights Weights
	// Revoked reports whether the MacNode with a UID was deleted.
	Revoked func(uid string) bool
	// AtOnce is how many peers may copy at a time; 0 means none. Of several, one peer
	// has at most all but one.
	AtOnce int
	// Rate bounds all copies together, in bytes per second; 0 means no bound.
	Rate int64
	// Given is called with the number of bytes sent; may be nil.
	Given func(n int)
	Log   logr.Logger
}

// NewServer returns a Server.
func NewServer(c ServerConfig) *Server {
	s := &Server{mac: c.Mac, roots: c.Roots, weights: c.Weights, slots: &slots{most: c.AtOnce}, given: c.Given, log: c.Log, revoked: c.Revoked}
	s.limit = rate.NewLimiter(rate.Inf, pieceBytes)
	s.SetRate(c.Rate)
	return s
}

// SetRate changes the bound of all copies together, in bytes per second; 0 means no bound.
func (s *Server) SetRate(bytesPerSecond int64) {
	if bytesPerSecond <= 0 {
		s.limit.SetLimit(rate.Inf)
		return
	}
	s.limit.SetLimit(rate.Limit(bytesPerSecond))
}

// ServeHTTP serves one file, or refuses before its first byte.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if mac, ok := agentapi.OverWeights(r); ok && !s.rates.allow(mac+"/"+agentapi.UIDOf(r.TLS.PeerCertificates[0]), time.Now()) {
		http.Error(w, "this Mac gets too many requests of yours", http.StatusServiceUnavailable)
		return
	}
	grant, sum, no := s.entitled(r, time.Now())
	if no != nil {
		s.log.Info("Refused a Mac's request for weights", "address", r.RemoteAddr, "reason", no.Error())
		http.Error(w, no.Error(), http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "weights are read-only", http.StatusMethodNotAllowed)
		return
	}
	if strings.Contains(r.Header.Get("Range"), ",") {
		http.Error(w, "weights are served in one range", http.StatusRequestedRangeNotSatisfiable)
		return
	}
	if s.slots.most == 0 {
		http.Error(w, "this Mac does not share weights", http.StatusNotFound)
		return
	}
	file, err := s.weights.Give(grant.Digest, grant.Source, grant.TokenRef, sum)
	var fetching *store.Fetching
	switch {
	case errors.As(err, &fetching):
		w.Header().Set(agentapi.HeaderFetched, strconv.FormatInt(fetching.Done, 10))
		http.Error(w, "this Mac is still downloading the weights", http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, store.ErrNotHere.Error(), http.StatusNotFound)
		return
	}
	defer file.Close()
	client, head := grant.ClientUID, r.Method == http.MethodHead
	switch {
	case head && s.slots.free(client):
		w.WriteHeader(http.StatusOK)
		return
	case head || !s.slots.take(client):
		http.Error(w, "this Mac is already serving as many peers, or this one as often, as it may", http.StatusServiceUnavailable)
		return
	}
	defer s.slots.end(client)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+sum+`"`)
	http.ServeContent(w, r, "", time.Time{}, &paced{file, s, r.Context(), client})
}

// entitled verifies the grant of a request against the name in the client's
// certificate. It returns the grant and the digest of the file.
func (s *Server) entitled(r *http.Request, now time.Time) (agentapi.Grant, string, error) {
	client, ok := agentapi.OverWeights(r)
	if !ok {
		return agentapi.Grant{}, "", errors.New("weights are served to Macs only")
	}
	digest, sum, ok := agentapi.CutWeightsPath(r.URL.Path)
	if !ok {
		return agentapi.Grant{}, "", errors.New("there are no weights at that path")
	}
	grant, err := agentapi.ReadGrant(r.Header.Get(agentapi.HeaderGrant), s.roots(), now)
	switch {
	case err != nil:
		return grant, "", err
	case grant.Client != client:
		return grant, "", fmt.Errorf("the grant is for Mac %q, but %q sent it", grant.Client, client)
	case grant.ClientUID != agentapi.UIDOf(r.TLS.PeerCertificates[0]):
		return grant, "", agentapi.ErrReplaced
	case s.revoked(grant.ClientUID):
		return grant, "", errRevoked
	case grant.Server != s.mac:
		return grant, "", fmt.Errorf("the grant is for weights of Mac %q", grant.Server)
	case grant.Digest != digest:
		return grant, "", errors.New("the grant is for other weights")
	}
	return grant, sum, nil
}

// errRevoked refuses a Mac whose MacNode was deleted.
var errRevoked = errors.New("the MacNode of this grant was deleted")

// paced is a file that is read within the server's rate limit, and only until the
// client's MacNode is deleted.
type paced struct {
	*os.File
	server *Server
	ctx    context.Context // that of the request which reads it
	uid    string          // of the client's MacNode
}

// Read replaces the file's Read.
func (p *paced) Read(b []byte) (int, error) {
	if p.server.revoked(p.uid) {
		return 0, errRevoked
	}
	n, err := p.File.Read(b[:min(len(b), pieceBytes)])
	if n > 0 {
		if late := p.server.limit.WaitN(p.ctx, n); late != nil {
			return 0, late
		}
	}
	if p.server.given != nil && n > 0 {
		p.server.given(n)
	}
	return n, err
}

// WriteTo replaces the file's WriteTo, which would bypass Read.
func (p *paced) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{p})
}
