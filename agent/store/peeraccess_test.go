package store

import (
	"context"
	"errors"
	"net/http"
	"path"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// nearby is a Mac of the site that gives what its store gives.
type nearby struct {
	*Store
	given int
}

func (n *nearby) Of(_ context.Context, rec model.Record, _ string, _ time.Duration) []Peer {
	return []Peer{{Mac: "m1", Get: func(_ context.Context, url string, _ http.Header) (*http.Response, error) {
		f, err := n.Give(rec.Digest, rec.Source, "a", path.Base(url))
		if err != nil {
			return nil, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Status: http.StatusNotFound, Message: err.Error()}
		}
		n.given++
		return with(f), nil
	}}}
}
func (n *nearby) Slow(model.Record, string) []Peer { return nil }
func (n *nearby) Failed(string, error)             {}

// TestAttackWeightsOfAPeerWithoutAccessToTheirSource: a tenant whose credential the source refuses
// gets no copy from a Mac that another tenant's credential brought them to.
func TestAttackWeightsOfAPeerWithoutAccessToTheirSource(t *testing.T) {
	first := newTenants(t)
	first.brought(t)
	first.refused.Store(true)
	for ref, reason := range map[string]string{"b": v1alpha1.ReasonTokenRefused, "": v1alpha1.ReasonSourceNotFound, "deleted": v1alpha1.ReasonTokenMissing, "a": ""} {
		t.Run("credential "+ref, func(t *testing.T) {
			peers := &nearby{Store: first.Store}
			second := overDir(t, first.stand, filepath.Join(t.TempDir(), "weights"))
			second.opt.Peers, second.sources.credential = peers, first.sources.credential
			p, err := second.Ensure(t.Context(), first.private, ref, nil)
			if download.Reason(err, "") != reason || (p != "") != (reason == "") || (peers.given > 0) != (reason == "") {
				t.Errorf("it is given %q, %v, after %d copies of a peer; want reason %q", p, err, peers.given, reason)
			}
		})
	}
}

// TestCopiesOfPeersWhileTheSourceIsAway: peers are there for that as well, and the source is asked
// once.
func TestCopiesOfPeersWhileTheSourceIsAway(t *testing.T) {
	first := newTenants(t)
	first.brought(t)
	peers, asked := &nearby{Store: first.Store}, new(atomic.Int64)
	second := overDir(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		panic(http.ErrAbortHandler)
	}), filepath.Join(t.TempDir(), "weights"))
	second.opt.Peers, second.sources.credential = peers, first.sources.credential
	if p, err := second.Ensure(t.Context(), first.private, "a", nil); err != nil || p == "" || peers.given != len(first.private.Files) || asked.Load() != 1 {
		t.Errorf("it is given %q, %v, after %d copies of a peer, and asked the source %d times", p, err, peers.given, asked.Load())
	}
}

// TestAFileThatIsCompleteIsNotAskedFor: a later turn of a download begins after the files of the
// earlier ones, without a question to the source for each.
func TestAFileThatIsCompleteIsNotAskedFor(t *testing.T) {
	first := newTenants(t)
	first.brought(t)
	asked := new(atomic.Int64)
	second := overDir(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		first.stand.ServeHTTP(w, r)
	}), filepath.Join(t.TempDir(), "weights"))
	second.opt.Peers, second.sources.credential = &nearby{Store: first.Store}, first.sources.credential
	rec := want{first.private, "a"}
	f := &sharedDownload{downloadKey: downloadKey{rec.Digest, rec.origin()}, changed: make(chan struct{})}
	c := second.newCopies(rec, map[string]*download.Hashed{})
	for _, asks := range []bool{true, false} {
		asked.Store(0)
		_, turn, err := second.slots.acquire(t.Context(), f.wantedBy)
		if err != nil {
			t.Fatal(err)
		}
		c.turn = turn
		c.ask(t.Context())
		targets, _, err := second.stage(t.Context(), rec, turn)
		if err != nil {
			t.Fatal(err)
		}
		c.keep(targets)
		err = second.transfer(t.Context(), f, rec, targets, c)
		turn.end()
		if err != nil || (asked.Load() > 0) != asks {
			t.Errorf("%d questions to the source (%v), want some: %v", asked.Load(), err, asks)
		}
	}
}

// TestAttackAPeerThatNamesAnotherCredential: the Mac that asks may have been taken over, and does
// not ask the source. What came without a credential is given to all.
func TestAttackAPeerThatNamesAnotherCredential(t *testing.T) {
	x := newTenants(t)
	x.brought(t)
	open, _ := repository()
	shared := overDir(t, hubOf(open), filepath.Join(t.TempDir(), "weights"))
	if _, err := shared.Ensure(t.Context(), x.private, "", nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of   *Store
		ref  string
		want error
	}{{x.Store, "a", nil}, {x.Store, "b", ErrNotHere}, {x.Store, "", ErrNotHere}, {shared, "", nil}, {shared, "b", nil}} {
		f, err := c.of.Give(x.private.Digest, x.private.Source, c.ref, x.private.Files[0].SHA256)
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("for the credential %q: %v, want %v", c.ref, err, c.want)
		}
	}
}
