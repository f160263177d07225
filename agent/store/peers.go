package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// FromPeer is the scheme that Options.Fetched receives for bytes from a peer.
const FromPeer = "neighbour"

// Peers are the Macs that weights may be copied from.
type Peers interface {
	// Of returns the peers that have the weights of a record now for a tokenRef, the best first.
	// It waits for peers that download them and make progress, or that are busy, for a
	// limited time, of which waited has passed. If there are none, the source is used.
	Of(ctx context.Context, rec model.Record, tokenRef string, waited time.Duration) []Peer
	// Slow returns the peers that were too slow lately. They are asked if the source
	// cannot be reached.
	Slow(rec model.Record, tokenRef string) []Peer
	// Failed records why a copy from a peer failed.
	Failed(mac string, err error)
}

// Peer is a Mac that serves weights.
type Peer struct {
	Mac string
	// Get requests one of the peer's URLs; see download.Target. A download uses the first one that
	// it gets of a Mac until that fails: what the Mac sent, and the time for it, are those of all turns.
	Get func(ctx context.Context, url string, header http.Header) (*http.Response, error)
}

// A busy peer is asked again, while another has the weights without a slot, and after
// the first file of a turn within its slot. busyLimit bounds that for all peers of a
// download together.
const (
	busyPause = 2 * time.Second
	busyLimit = 30 * time.Second
)

// errBusy ends the turn of a download whose peers are all busy; it continues in another
// one.
var errBusy = errors.New("all peers are busy")

// copies are the copies of a download's files from peers.
type copies struct {
	*Store
	rec want

	waited time.Duration               // for peers, without a slot
	busy   time.Duration               // for peers that turned out to be busy
	hashed map[string]*download.Hashed // of the files that are begun, by name, also by an earlier download
	silent bool                        // the source could not be asked: it is not asked again
	known  map[string]Peer             // that have not failed since they were first asked, by Mac
	sent   map[[2]string]int64         // bytes, by Mac and file

	// The peers to ask and the slot of this turn, and whether it has a file already.
	peers []Peer
	turn  *turn
	begun bool
}

func (s *Store) newCopies(rec want, hashed map[string]*download.Hashed) *copies {
	return &copies{Store: s, rec: rec, hashed: hashed, known: map[string]Peer{}, sent: map[[2]string]int64{}}
}

// keep gives each file the hash of an earlier turn, or download, that began it.
func (c *copies) keep(targets []download.Target) {
	for i := range targets {
		if c.hashed[targets[i].Name] == nil {
			c.hashed[targets[i].Name] = new(download.Hashed)
		}
		targets[i].Hashed = c.hashed[targets[i].Name]
	}
}

// ask finds the Macs to copy from. They are asked before the download takes a slot, so
// that two Macs that wait for each other's downloads do not block.
func (c *copies) ask(ctx context.Context) {
	if c.opt.Peers == nil {
		return
	}
	began := time.Now()
	c.peers, c.begun = nil, false
	for _, p := range c.opt.Peers.Of(ctx, c.rec.Record, c.rec.ref, c.waited) {
		if _, ok := c.known[p.Mac]; !ok {
			c.known[p.Mac] = p
		}
		c.peers = append(c.peers, c.known[p.Mac])
	}
	c.waited += time.Since(began)
}

// file fetches a file from a peer or from its source, or from a slow peer if the source
// cannot be reached.
func (c *copies) file(ctx context.Context, t download.Target, show func(download.Progress)) error {
	defer func() { c.begun = true }()
	copied, err := c.copy(ctx, t, show)
	if err != nil || copied {
		return err
	}
	if err = c.opt.Fetch.Fetch(ctx, t, show); err == nil || ctx.Err() != nil || !download.IsTransient(err) {
		return err
	}
	copied, failed := c.fromSlow(ctx, t, show)
	if copied || failed != nil {
		return failed
	}
	return err
}

// copy fetches a file from one of the peers, and reports whether one had it: after any
// failure of a peer the source is used. A peer that failed is not asked for other files:
// each could take as long. A file whose download began at the source is resumed there.
func (c *copies) copy(ctx context.Context, t download.Target, show func(download.Progress)) (copied bool, err error) {
	if download.Begun(t) {
		return false, nil
	}
	if len(c.peers) > 0 && !c.permitted(ctx, t) {
		return false, nil // the source says why
	}
	began := time.Now()
	for busy := 0; len(c.peers) > 0; {
		p := c.peers[0]
		c.peers = c.peers[1:]
		err := c.from(ctx, p, t, show)
		switch {
		case err == nil:
			c.peers = append([]Peer{p}, c.peers...)
			return true, nil
		case ctx.Err() != nil, ofThisDisk(err):
			return false, err
		case isBusy(err) && c.busy < busyLimit:
			c.peers = append(c.peers, p)
			if busy++; busy < len(c.peers) {
				continue
			}
			c.busy += time.Since(began) + busyPause
			if !c.begun {
				return false, errBusy
			}
			if err := pause(ctx); err != nil {
				return false, err
			}
			busy, began = 0, time.Now()
		default:
			c.failed(p, t, err)
			busy, began = 0, time.Now()
		}
	}
	return false, nil
}

// askTime is how long a source may take to permit a copy.
const askTime = 5 * time.Second

// permitted reports whether a file may be copied from a peer, to which another credential may have
// brought it: its source has to let this one read it. A source that does not answer refuses nothing,
// because the copies of the site are for that as well.
func (c *copies) permitted(ctx context.Context, t download.Target) bool {
	if c.silent || t.Header == nil { // it takes no credentials
		return true
	}
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := c.readable(asking, t)
	c.silent = err != nil && !download.Denied(err) && (download.IsTransient(err) || asking.Err() != nil)
	return err == nil || c.silent
}

// failed records the failure of a peer.
func (c *copies) failed(p Peer, t download.Target, err error) {
	c.opt.Log.Info("Failed to copy weights from a peer; trying the next source", "peer", p.Mac, "digest", c.rec.Digest, "cause", err.Error())
	c.opt.Peers.Failed(p.Mac, err)
	delete(c.known, p.Mac)
}

// fromSlow fetches a file whose source cannot be reached from a peer that is slow, and
// reports whether one had it. What came from the source stays for it.
func (c *copies) fromSlow(ctx context.Context, t download.Target, show func(download.Progress)) (copied bool, err error) {
	if c.opt.Peers == nil || download.Begun(t) {
		return false, nil
	}
	slow := c.opt.Peers.Slow(c.rec.Record, c.rec.ref)
	if len(slow) == 0 || !c.permitted(ctx, t) {
		return false, nil
	}
	for _, p := range slow {
		err := c.from(ctx, p, t, show)
		if err == nil || ctx.Err() != nil || ofThisDisk(err) {
			return err == nil, err
		}
		c.failed(p, t, err)
	}
	return false, nil
}

// from fetches a file from one peer. Its bytes count for the turn like those of a
// source.
func (c *copies) from(ctx context.Context, p Peer, t download.Target, show func(download.Progress)) error {
	t.URL = "https://" + agentapi.MacServerName(p.Mac) + agentapi.WeightsPath(c.rec.Digest, t.SHA256)
	sent := [2]string{p.Mac, t.Name}
	t.Get, t.Header, t.Tries, t.Most = p.Get, nil, 1, max(1, 2*t.Bytes-c.sent[sent])
	t.Immutable = true
	t.Gained = func(n int) {
		c.turn.gained(n)
		c.sent[sent] += int64(n)
		if c.opt.Fetched != nil {
			c.opt.Fetched(FromPeer, n)
		}
	}
	return c.opt.Fetch.Fetch(ctx, t, show)
}

// isBusy reports whether a peer may serve the file later.
func isBusy(err error) bool {
	var e *download.Error
	return errors.As(err, &e) && e.Status == http.StatusServiceUnavailable
}

// pause waits before busy peers are asked again.
func pause(ctx context.Context) error {
	timer := time.NewTimer(busyPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("copy from a peer: %w", context.Cause(ctx))
	}
}

// ofThisDisk reports whether the failure is one of this Mac's own disk.
func ofThisDisk(err error) bool {
	switch download.Reason(err, "") {
	case v1alpha1.ReasonDiskFull, v1alpha1.ReasonDownloadFailed:
		return true
	}
	return false
}
