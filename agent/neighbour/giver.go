package neighbour

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/agentapi"
)

// GivesAtOnce is how many Macs are given weights at a time where no other number
// is said, and GiveRate how many bytes per second all of them together: what a
// Mac serves comes first.
const (
	GivesAtOnce = 2
	GiveRate    = 200_000_000
)

// pieceBytes is the most that is read at once.
const pieceBytes = 256 << 10

// Shelf has the weights of this Mac; a *store.Store is one.
type Shelf interface {
	Give(digest, source, sha256 string) (*os.File, error)
}

// Giver answers other Macs. Make one with NewGiver.
type Giver struct {
	mac   string
	roots func() []*x509.Certificate
	shelf Shelf
	slots chan struct{}
	limit *rate.Limiter
	given func(n int)
	log   logr.Logger
	// revoked reports whether the MacNode with a UID was deleted.
	revoked func(uid string) bool
}

// GiverConfig is what a giver is made of.
type GiverConfig struct {
	// Mac is this one's name, and Roots those that are trusted now.
	Mac   string
	Roots func() []*x509.Certificate
	Shelf Shelf
	// Revoked reports whether the MacNode with a UID was deleted.
	Revoked func(uid string) bool
	// AtOnce is how many are given to at a time; 0 means nobody.
	AtOnce int
	// Rate is the most bytes per second for all of them; 0 means no bound.
	Rate int64
	// Given is told the bytes that were given; nil: nobody is.
	Given func(n int)
	Log   logr.Logger
}

// NewGiver makes a giver.
func NewGiver(c GiverConfig) *Giver {
	g := &Giver{mac: c.Mac, roots: c.Roots, shelf: c.Shelf, slots: make(chan struct{}, c.AtOnce), given: c.Given, log: c.Log, revoked: c.Revoked}
	if c.Rate > 0 {
		g.limit = rate.NewLimiter(rate.Limit(c.Rate), pieceBytes)
	}
	return g
}

// ServeHTTP gives one file, or says no before its first byte.
func (g *Giver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	grant, sum, no := g.entitled(r, time.Now())
	if no != nil {
		g.log.Info("Refused a Mac's request for weights", "address", r.RemoteAddr, "reason", no.Error())
		http.Error(w, no.Error(), http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "weights are read-only", http.StatusMethodNotAllowed)
		return
	}
	if cap(g.slots) == 0 {
		http.Error(w, "this Mac does not share weights", http.StatusNotFound)
		return
	}
	file, err := g.shelf.Give(grant.Digest, grant.Source, sum)
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
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	default:
		http.Error(w, "this Mac is already serving as many peers as it may", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+sum+`"`)
	http.ServeContent(w, r, "", time.Time{}, &paced{file, g, r.Context(), grant.ClientUID})
}

// entitled reads the grant of a request, and says what is wrong with it. The
// name of who asks is that of its certificate.
func (g *Giver) entitled(r *http.Request, now time.Time) (agentapi.Grant, string, error) {
	asker, ok := agentapi.OverWeights(r)
	if !ok {
		return agentapi.Grant{}, "", errors.New("weights are served to Macs only")
	}
	digest, sum, ok := agentapi.CutWeightsPath(r.URL.Path)
	if !ok {
		return agentapi.Grant{}, "", errors.New("there are no weights at that path")
	}
	grant, err := agentapi.ReadGrant(r.Header.Get(agentapi.HeaderGrant), g.roots(), now)
	switch {
	case err != nil:
		return grant, "", err
	case grant.Client != asker:
		return grant, "", fmt.Errorf("the grant is for Mac %q, but %q sent it", grant.Client, asker)
	case grant.ClientUID != agentapi.UIDOf(r.TLS.PeerCertificates[0]):
		return grant, "", agentapi.ErrReplaced
	case g.revoked(grant.ClientUID):
		return grant, "", errRevoked
	case grant.Server != g.mac:
		return grant, "", fmt.Errorf("the grant is for weights of Mac %q", grant.Server)
	case grant.Digest != digest:
		return grant, "", errors.New("the grant is for other weights")
	}
	return grant, sum, nil
}

// errRevoked refuses a Mac whose MacNode was deleted.
var errRevoked = errors.New("the MacNode of this grant was deleted")

// paced is a file that is read no faster than the giver gives, and no further once the
// MacNode of who reads it was deleted.
type paced struct {
	*os.File
	giver *Giver
	ctx   context.Context // that of the request which reads it
	uid   string          // of the MacNode that reads it
}

// Read hides the file's own ways to be copied at once.
func (p *paced) Read(b []byte) (int, error) {
	if p.giver.revoked(p.uid) {
		return 0, errRevoked
	}
	n, err := p.File.Read(b[:min(len(b), pieceBytes)])
	if p.giver.limit != nil && n > 0 {
		if late := p.giver.limit.WaitN(p.ctx, n); late != nil {
			return 0, late
		}
	}
	if p.giver.given != nil && n > 0 {
		p.giver.given(n)
	}
	return n, err
}

// WriteTo is not the file's: it would pass Read by.
func (p *paced) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{p})
}
