package history

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// behaviour is what a history says of a model.
type behaviour struct {
	script   enginetest.Script
	download string
	pages    pages
}

// models are the behaviours of engines by the name of their model, and the store
// that downloads them. Safe for concurrent use.
type models struct {
	dir string

	mu sync.Mutex // guards by
	by map[string]behaviour
}

func newModels(dir string) *models {
	return &models{dir: filepath.Join(dir, "models"), by: map[string]behaviour{}}
}

// path of a model's file; nothing reads it.
func (m *models) path(name string) string { return filepath.Join(m.dir, name) }

func (m *models) set(name string, b behaviour) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.by[name] = b
}

func (m *models) of(name string) (b behaviour, described bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, described = m.by[name]
	return b, described
}

// Ensure finds the path of a model, or does what the history says.
func (m *models) Ensure(ctx context.Context, r model.Record, _ string, progress func(done, total int64)) (string, error) {
	b, _ := m.of(r.Source)
	progress(r.Bytes()/2, r.Bytes())
	switch b.download {
	case "fails":
		return "", &pool.DownloadError{Reason: v1alpha1.ReasonDownloadFailed, Message: "the source does not answer"}
	case "refused":
		return "", &pool.DownloadError{Reason: v1alpha1.ReasonDigestMismatch, Message: "other bytes than were promised", Final: true}
	case "hangs":
		<-ctx.Done()
		return "", ctx.Err()
	}
	return m.path(r.Source), nil
}

func (w *World) model(a *arguments) (string, error) {
	name := a.word()
	b := behaviour{download: "ok", pages: pages{wired: -1}}
	s := &b.script
	s.TokenMilliseconds, s.LeakMilliseconds = 100, 1000
	a.bytes("holds", &s.HoldBytes)
	a.bytes("pooled", &s.PooledBytes)
	a.bytes("kv", &s.RequestBytes)
	a.bytes("leak", &s.LeakBytes)
	a.bytes("headroom", &s.HeadroomBytes)
	a.bytes("prefixes", &s.PrefixCacheBytes)
	a.bytes("strands", &b.pages.strands)
	a.bytes("wired", &b.pages.wired)
	a.bytes("compressed", &b.pages.compressed)
	a.milliseconds("acks", &s.AcknowledgeMilliseconds)
	a.milliseconds("load", &s.LoadMilliseconds)
	a.milliseconds("every", &s.LeakMilliseconds)
	a.milliseconds("token", &s.TokenMilliseconds)
	a.milliseconds("shutdown", &s.ShutdownMilliseconds)
	s.PoolRequests, s.HangLoading, s.Deaf = a.flag("pools-kv"), a.flag("hangs"), a.flag("deaf")
	s.FailReason, _ = a.text("fails")
	s.DieLoading = int(a.number("dies", 0))
	if how, ok := a.text("download"); ok {
		b.download = how
	}
	ignores := map[string]*bool{
		"shutdown": &s.IgnoreShutdown, "term": &s.IgnoreTerm, "trim": &s.IgnoreTrim, "abort": &s.IgnoreAbort, "limits": &s.IgnoreLimits,
	}
	for _, what := range a.list("ignores") {
		if ignores[what] == nil {
			return "", fmt.Errorf("ignores=%s: want shutdown, term, trim, abort or limits", what)
		}
		*ignores[what] = true
	}
	if !slices.Contains([]string{"ok", "fails", "refused", "hangs"}, b.download) {
		return "", fmt.Errorf("download=%s: want ok, fails, refused or hangs", b.download)
	}
	if err := a.done(); err != nil {
		return "", err
	}
	w.judge.muddle(b.pages.wired >= 0)
	w.models.set(name, b)
	w.twin.SetScript(w.models.path(name), *s)
	return "", nil
}
