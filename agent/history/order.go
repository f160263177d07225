package history

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/api/resource"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// namespace of all replicas; their UIDs are their names.
const namespace = "team"

// defaultDrain of an order that says nothing.
const defaultDrain = 30 * time.Second

// behaviour is what a history says of a model.
type behaviour struct {
	script   enginetest.Script
	download string
	pages    pages
}

func (w *World) setCeiling(bytes int64) {
	w.policy.Ceiling = nil
	if bytes > 0 {
		w.policy.Ceiling = resource.NewQuantity(bytes, resource.BinarySI)
	}
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
	w.muddle(b.pages.wired >= 0)
	w.mu.Lock()
	w.models[name] = b
	w.mu.Unlock()
	w.twin.SetScript(w.path(name), *s)
	return "", nil
}

// weights plays the store.
type weights struct{ world *World }

// Ensure finds the path of a model, or does what the history says.
func (s *weights) Ensure(ctx context.Context, r model.Record, _ string, progress func(done, total int64)) (string, error) {
	s.world.mu.Lock()
	how := s.world.models[r.Source].download
	s.world.mu.Unlock()
	progress(r.Bytes()/2, r.Bytes())
	switch how {
	case "fails":
		return "", &pool.DownloadError{Reason: v1alpha1.ReasonDownloadFailed, Message: "the source does not answer"}
	case "refused":
		return "", &pool.DownloadError{Reason: v1alpha1.ReasonDigestMismatch, Message: "other bytes than were promised", Final: true}
	case "hangs":
		<-ctx.Done()
		return "", ctx.Err()
	}
	return s.world.path(r.Source), nil
}

func (w *World) order(a *arguments) (string, error) {
	if err := w.place(a); err != nil {
		return "", err
	}
	w.apply()
	return "", nil
}

// orderAll gives several orders at once.
func (w *World) orderAll(a *arguments) (string, error) {
	for _, line := range strings.Split(strings.TrimSpace(a.input), "\n") {
		_, args, err := datadriven.ParseLine("order " + line)
		if err := errors.Join(err, a.done()); err != nil {
			return "", err
		}
		if err := w.place(&arguments{args: args}); err != nil {
			return "", err
		}
	}
	w.apply()
	return "", nil
}

// place changes one order.
func (w *World) place(a *arguments) error {
	name := a.word()
	w.mu.Lock()
	o, ok := w.orders[name]
	w.mu.Unlock()
	if !ok {
		o = newOrder(name)
		o.Epoch = w.epochs[name] + 1 // one that was withdrawn does not come back
	}
	for flag, to := range map[string]v1alpha1.DesiredState{
		"running": v1alpha1.DesiredRunning, "downloaded": v1alpha1.DesiredDownloaded, "drained": v1alpha1.DesiredDrained,
	} {
		if a.flag(flag) {
			o.Desired = to
		}
	}
	if a.flag("always") {
		o.Residency.Policy = ""
	}
	if a.flag("on-demand") {
		o.Residency.Policy = v1alpha1.ResidencyOnDemand
	}
	idle, drain := time.Duration(o.Residency.IdleSeconds)*time.Second, time.Duration(o.DrainSeconds)*time.Second
	a.duration("idle", &idle)
	a.duration("drain", &drain)
	o.Residency.IdleSeconds, o.DrainSeconds = int32(idle/time.Second), int32(drain/time.Second)
	o.Residency.EvictionPriority = int32(a.number("priority", int64(o.Residency.EvictionPriority)))
	if a.flag("next-epoch") {
		o.Epoch++
	}
	o.Context.MaxTokens = a.number("context", o.Context.MaxTokens)
	a.bytes("reserve", &o.ReservedBytes)
	if source, ok := a.text("model"); ok {
		o.Model = record(source)
	}
	if err := a.done(); err != nil {
		return err
	}
	w.mu.Lock()
	w.orders[name], w.epochs[name] = o, o.Epoch
	w.drains[name] = max(w.drains[name], o.DrainSeconds)
	w.mu.Unlock()
	return nil
}

func newOrder(name string) v1alpha1.Assignment {
	return v1alpha1.Assignment{
		ReplicaUID: name, Epoch: 1, Namespace: namespace, Name: name, ServedNames: []string{name}, Model: record(name),
		Context: v1alpha1.ContextLimits{MaxTokens: 64, MaxConcurrentRequests: 2, KVCacheTokens: 1 << 20}, ReservedBytes: 1 << 30,
		DrainSeconds: int32(defaultDrain / time.Second), Desired: v1alpha1.DesiredRunning,
	}
}

func record(source string) model.Record {
	files := []model.File{{Path: filepath.Base(source) + ".gguf", Bytes: 1000, SHA256: strings.Repeat("ab", 32)}}
	return model.Record{Source: source, Digest: model.DigestOf(files), Format: model.FormatGGUF, Files: files}
}

func (w *World) withdraw(a *arguments) (string, error) {
	names := []string{a.word()}
	for len(a.args) > 0 && len(a.args[0].Vals) == 0 {
		names = append(names, a.word())
	}
	if err := a.done(); err != nil {
		return "", err
	}
	w.mu.Lock()
	for _, name := range names {
		delete(w.orders, name)
	}
	w.mu.Unlock()
	w.apply()
	return "", nil
}
