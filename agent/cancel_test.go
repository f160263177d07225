package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// slowHost serves one file; a request from its start stops half way, until its
// client disconnects.
type slowHost struct {
	*httptest.Server
	content []byte
	whole   atomic.Bool
	resumed atomic.Int64
}

func newSlowHost(t *testing.T, content []byte) *slowHost {
	h := &slowHost{content: content}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *slowHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"one"`)
	if r.Header.Get("Range") != "" {
		h.resumed.Add(1)
	}
	if h.whole.Load() {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.content))
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(h.content)))
	_, _ = w.Write(h.content[:len(h.content)/2])
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// parts are the bytes that lie in unfinished downloads.
func (m *mac) partialBytes() (bytes int64) {
	m.t.Helper()
	err := filepath.WalkDir(filepath.Join(m.state, "weights", "partial"), func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went just now
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return bytes
}

// TestADownloadThatIsNotWantedAnyMoreGivesBackItsDisk, whether its assignment is
// drained, removed, or removed while the agent was stopped; a download that is
// still wanted is resumed.
func TestADownloadThatIsNotWantedAnyMoreGivesBackItsDisk(t *testing.T) {
	m := newMac(t, tinymodel.Config{Hidden: 512, FeedForward: 2048, Layers: 2, Vocabulary: 4096})
	m.giveIdentity()
	content, err := os.ReadFile(filepath.Join(m.root, "tiny.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	host := newSlowHost(t, content)
	m.record.Source = host.URL + "/m.gguf"
	m.root = t.TempDir() // what is fetched is not here
	m.sources = download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Roots: rootsOf(host.Server)}
	begun := func() error {
		if n := m.partialBytes(); n < int64(len(content)/2) {
			return fmt.Errorf("%d bytes are there", n)
		}
		return nil
	}
	back := func() error {
		if n := m.partialBytes(); n > 0 {
			return fmt.Errorf("%d bytes of partial downloads are left", n)
		}
		return nil
	}
	m.boot()
	a := m.assignment()
	m.orders.next <- ordersOf(1, a)
	poll(t, begun)
	drained := a
	drained.Desired = v1alpha1.DesiredDrained
	m.orders.next <- ordersOf(2, drained)
	m.waitFor(v1alpha1.ConditionReleased, "True/Released")
	poll(t, back)

	again := a
	again.ReplicaUID = "u2"
	m.orders.next <- ordersOf(3, again)
	poll(t, begun)
	m.orders.next <- ordersOf(4)
	poll(t, back)

	third := a
	third.ReplicaUID = "u3"
	m.orders.next <- ordersOf(5, third)
	poll(t, begun)
	m.halt()
	if err := begun(); err != nil {
		t.Fatalf("a stopped agent took its download along: %v", err)
	}
	host.whole.Store(true)
	before := host.resumed.Load()
	m.boot() // the orders of its journal hold
	m.waitFor(v1alpha1.ConditionServing, "True/Serving")
	if host.resumed.Load() == before {
		t.Error("the download started over")
	}
	m.orders.next <- ordersOf(6)
	poll(t, back)
}

// TestAWithdrawalThatAnAgentMissedGivesBackTheDisk: the agent was away, and
// finds the part of a download that no order wants.
func TestAWithdrawalThatAnAgentMissedGivesBackTheDisk(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.giveIdentity()
	left := filepath.Join(m.state, "weights", "partial", "aa"+m.record.Digest[len("sha256:aa"):]+"-"+strings.Repeat("0", 16), "files")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "model.gguf"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	m.boot()
	o := ordersOf(1)
	o.Invalid = append(o.Invalid, journal.InvalidAssignment{ReplicaUID: "u9", Epoch: 1, Message: "not to be read"})
	m.orders.next <- o
	m.orders.next <- o // the first is dealt with
	if m.partialBytes() != 1000 {
		t.Error("it went although an order could not be read")
	}
	m.orders.next <- ordersOf(2)
	poll(t, func() error {
		if n := m.partialBytes(); n > 0 {
			return fmt.Errorf("%d bytes of partial downloads are left", n)
		}
		return nil
	})
}
