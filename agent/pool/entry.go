package pool

import (
	"context"
	"errors"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// entry is one replica in one epoch. registry.mu guards all of it.
type entry struct {
	key memory.Key

	// Desired.
	want       want
	assignment v1alpha1.Assignment // the last one that named it
	invalid    string

	// Observed.
	state    State
	download download
	reserved bool
	refused  *journal.Refusal // final: not admitted, or failed for good
	failure  *journal.Refusal // of the last load or crash, while it backs off
	engine   *engine          // from just before its start to its observed end
	loads    int64
	restarts int32
	// lastFailure is the cause of the last restart.
	lastFailure *v1alpha1.EngineFailure
	// canary of the last engine that became ready; nil before the first.
	canary   *v1alpha1.Canary
	crashes  []time.Time
	setBacks []time.Time // the latest ends for memory
	restart  time.Time   // not before
	freed    v1alpha1.Freed
	released bool
	// recording: its release, its removal, or the end of an engine that no agent
	// observed is being written to the journal. Nothing is started until then.
	recording bool
	// demand is the load that requests wait for; nil while none does.
	demand *demand
	// short is why the last attempt found no memory; the next one is at
	// roomAgain.
	short     *memory.NoRoomError
	roomAgain time.Time
	wait      roomWait
	// tenure is since when engines of its namespace have followed one another up to
	// the last one that was started; zero: it followed none.
	tenure time.Time
	// guards and remembered are what earlier engines counted.
	guards     GuardCounters
	remembered Remembered

	conditions []metav1.Condition // as last published, for their transition times
}

// download is the state of an entry's download.
type download struct {
	running, done bool
	// ending: it was cancelled and has not returned.
	ending       bool
	cancel       context.CancelFunc
	path         string
	adapters     []string // paths, in the order of the assignment's
	bytes, total int64
	since        time.Time
	attempts     int
	refusals     int // the last attempts that failed with a Final error
	failure      *DownloadError
	notBefore    time.Time
}

// remember restores what the journal has of a replica.
func (e *entry) remember(r journal.Replica, now time.Time) {
	e.loads, e.restarts, e.lastFailure = r.Loads, r.Restarts, r.LastFailure
	for _, at := range r.Crashes {
		e.crashes = append(e.crashes, earlier(at, now))
	}
	e.refused, e.freed, e.released = r.Refused, r.Freed, r.Released
	switch {
	case e.refused != nil:
		e.state = Failed
	case e.released:
		e.state = Exited
	}
}

// take makes an assignment the desired state of the entry.
func (e *entry) take(a v1alpha1.Assignment) {
	e.assignment, e.invalid = a, ""
	if a.Residency.OnDemand() && e.engine == nil && e.refused != nil && e.refused.Reason == v1alpha1.ReasonInsufficientRoom {
		e.refused, e.state = nil, Absent // it was refused while it was always resident
	}
	if a.Desired != v1alpha1.DesiredDrained {
		e.released = false // it may have been drained before a backup was restored
	}
	switch a.Desired {
	case v1alpha1.DesiredRunning:
		if e.want == wantDownloaded && e.download.failure != nil && !e.download.failure.Final {
			e.download.notBefore = time.Time{} // requests wait for it now, and more of the disk may be its
		}
		e.want = wantRunning
	case v1alpha1.DesiredDownloaded:
		e.want = wantDownloaded
	case v1alpha1.DesiredDrained:
		e.want = wantDrained
	default:
		e.want, e.invalid = wantInvalid, "desired state "+string(a.Desired)+" is not supported by this agent"
	}
}

// onDemand reports whether the first request loads the entry's engine; the
// caller holds registry.mu.
func (e *entry) onDemand() bool {
	return e.want == wantRunning && e.assignment.Residency.OnDemand()
}

// asleep reports whether the files are here and the first request loads it; the
// caller holds registry.mu.
func (e *entry) asleep() bool {
	return e.onDemand() && e.refused == nil && e.download.done && e.engine == nil
}

// hasNoProcess reports whether the entry has no process: none was started, or the
// last one has ended and that is being written down. The caller holds registry.mu.
func (e *entry) hasNoProcess() bool { return e.engine == nil || e.engine.state == Exited }

// outdated reports whether the engine serves another configuration than is wanted.
func (e *entry) outdated() bool {
	return e.want == wantRunning && e.engine != nil && !sameService(e.engine.config, e.config(""))
}

// idleAfter is the time to live of an idle engine; the caller holds registry.mu.
func (e *entry) idleAfter() time.Duration {
	return time.Duration(e.assignment.Residency.IdleSeconds) * time.Second
}

// view is the input of plan. Without a measured host nothing can be admitted.
// settled: the host was checked after the last unclean end of an engine.
func (e *entry) view(hostKnown, settled bool) view {
	d := &e.download
	v := view{
		key: e.key, want: e.want,
		downloaded: d.done, downloading: d.running, downloadEnding: d.ending, downloadNotBefore: d.notBefore,
		reserved: e.reserved, refused: e.refused != nil || !hostKnown && d.done && !e.reserved,
		refusedUntil: e.failedUntil(),
		engine:       e.engine != nil, loadNotBefore: e.restart, released: e.released, recording: e.recording,
		onDemand: e.onDemand(), demanded: e.demand != nil, roomNotBefore: e.roomAgain, unsettled: !settled || e.recording,
	}
	if e.demand != nil {
		v.since = e.demand.since
	}
	if e.engine != nil {
		v.starting, v.unloading = e.engine.state == Starting, e.engine.leaving()
		v.outdated = e.outdated()
	}
	return v
}

// config is the configuration of an engine of this entry.
func (e *entry) config(path string) wire.Config {
	a := &e.assignment
	c := wire.Config{
		ReplicaUID: e.key.UID, Epoch: e.key.Epoch, Namespace: a.Namespace, ModelPath: path, ModelDigest: a.Model.Digest,
		ContextTokens: a.Context.MaxTokens, Sequences: a.Context.MaxConcurrentRequests, CacheTokens: a.Context.KVCacheTokens,
		CacheQueueBytes: a.PrefixCache.QueueBytes, LimitBytes: memory.EngineLimit(a.ReservedBytes), Task: string(a.Model.Facts.Task),
	}
	for i, adapter := range a.Model.Adapters {
		c.Adapters = append(c.Adapters, wire.Adapter{Name: adapter.Name, Digest: adapter.Digest})
		if i < len(e.download.adapters) {
			c.Adapters[i].Path = e.download.adapters[i]
		}
	}
	if len(a.SharedPrefixes) > 0 {
		c.SharedPrefixes, c.SharedScope = a.SharedPrefixes, a.Namespace
	}
	c.ChatTemplate, c.Sampling = a.ChatTemplate, policy(a.Sampling)
	return c
}

// CacheModel is wire.Config.CacheModel of the engines of an assignment.
func CacheModel(a v1alpha1.Assignment) string { return (&entry{assignment: a}).config("").CacheModel() }

// policy is how an engine treats requests; nil if nothing is stated.
func policy(s v1alpha1.SamplingSpec) *wire.SamplingPolicy {
	if s == (v1alpha1.SamplingSpec{}) {
		return nil
	}
	p := &wire.SamplingPolicy{
		Temperature: s.Temperature.Float(), TopP: s.TopP.Float(), MinP: s.MinP.Float(), RepetitionPenalty: s.RepetitionPenalty.Float(),
		MaxTokens: s.MaxTokens, LimitTokens: s.Limits.MaxTokens, LimitTemperature: s.Limits.Temperature.Float(),
	}
	if s.TopK > 0 {
		p.TopK = &s.TopK
	}
	return p
}

// sameService reports whether an engine with configuration have can serve want.
// The location of the files and the way its limit was computed do not matter: a
// new agent must not unload an engine that an old one started.
func sameService(have, want wire.Config) bool {
	have.ModelPath, have.LimitBytes, have.Backend = want.ModelPath, want.LimitBytes, want.Backend
	have.CacheDir, have.Sandbox, have.Namespace = want.CacheDir, want.Sandbox, want.Namespace
	have.Adapters, want.Adapters = placeless(have.Adapters), placeless(want.Adapters)
	if have.Task == "" { // its task is that of the model, as inspected
		have.Task = want.Task
	}
	return reflect.DeepEqual(have, want)
}

// placeless are adapters without the location of their files.
func placeless(all []wire.Adapter) (out []wire.Adapter) {
	for _, a := range all {
		out = append(out, wire.Adapter{Name: a.Name, Digest: a.Digest})
	}
	return out
}

// end cancels a running download; one that has ended stays as it is. The caller
// holds registry.mu.
func (d *download) end() {
	if d.running {
		d.ending = true
		d.cancel()
	}
}

func (d *download) finished(path string, err error, now time.Time) {
	d.running, d.ending, d.cancel, d.failure = false, false, nil, nil
	if err == nil {
		d.done, d.path, d.bytes, d.attempts, d.refusals = true, path, d.total, 0, 0
		return
	}
	if !errors.As(err, &d.failure) {
		d.failure = &DownloadError{Reason: v1alpha1.ReasonDownloadFailed, Message: excerpt.Message(err.Error())}
	}
	pause := downloadPause(d.attempts)
	if d.failure.Final {
		d.refusals++
		pause = refusedPause(d.refusals)
	} else {
		d.refusals = 0
	}
	d.notBefore = now.Add(max(d.failure.RetryAfter, pause))
}

// earlier returns a time of the journal, or now if that is earlier: the clock may
// have been set back, and a wait that is counted from a future time would not end.
func earlier(at, now time.Time) time.Time {
	if at.After(now) {
		return now
	}
	return at
}
