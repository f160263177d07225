package macnode

import (
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Timers of silence.
const (
	silentAfter = v1alpha1.MacSilentSeconds * time.Second
	goneAfter   = v1alpha1.MacGoneSeconds * time.Second
)

// Pulse is what the operator observed of one Mac's Lease.
type Pulse struct {
	// Renewed is the Lease's renewal time by the Mac's clock: only whether it changes
	// matters. Zero: never renewed, or emptied.
	Renewed time.Time
	// Seen: this process has observed a change since it was last blind.
	Seen bool
	// Silence is how long ago that was, by the operator's clock; without any change, how
	// long it has been observing. Time in which it was blind does not count.
	Silence time.Duration
}

// Judge derives the condition Ready of a Mac from its previous value and what was observed
// since. A process that has just started, or was blind, has observed nothing yet: it keeps
// the last judgement, and a silence that had just begun has to last its full time again. An
// emptied Lease of a Mac that joined is one that is no longer renewed.
func Judge(before *metav1.Condition, p Pulse) status.Condition {
	is := v1alpha1.ConditionReady
	stays := func(reason string) bool { return !p.Seen && before != nil && before.Reason == reason }
	switch {
	case p.Renewed.IsZero() && !hasJoined(before) || stays(v1alpha1.ReasonNeverReported):
		return status.False(is, v1alpha1.ReasonNeverReported, "the Mac's agent has not joined yet")
	case p.Silence >= goneAfter || stays(v1alpha1.ReasonMacGone):
		return status.False(is, v1alpha1.ReasonMacGone,
			fmt.Sprintf("no heartbeat for %d s; its replicas are recreated on other Macs", v1alpha1.MacGoneSeconds))
	case p.Silence >= silentAfter || stays(v1alpha1.ReasonMacSilent) || stays(v1alpha1.ReasonBreakerOpen):
		return status.Unknown(is, v1alpha1.ReasonMacSilent,
			fmt.Sprintf("no heartbeat for %d s; its engines may still serve; after %d s its replicas are recreated on other Macs", v1alpha1.MacSilentSeconds, v1alpha1.MacGoneSeconds))
	default:
		return status.True(is, v1alpha1.ReasonReporting, "the Mac's agent renews its Lease")
	}
}

// hasJoined reports whether a Mac with this condition Ready has reported before.
func hasJoined(before *metav1.Condition) bool {
	return before != nil && before.Reason != v1alpha1.ReasonNeverReported
}

// Pulses remembers when each Mac's Lease was last seen to change.
type Pulses struct {
	mu sync.Mutex
	// seen by the name of the Mac, guarded by mu.
	seen map[string]*pulse
	// blind is the time until which the operator could observe nothing, guarded by mu.
	blind time.Time
	// looked is when it last could, or was blind, guarded by mu.
	looked time.Time
}

type pulse struct {
	renewed time.Time
	changed time.Time
	seen    bool
	// before is the silence that lasted when the operator became blind.
	before time.Duration
}

// silence returns how long a Lease was seen not to change; blind is the end of the last blindness.
func (p *pulse) silence(blind, now time.Time) time.Duration {
	if blind.After(p.changed) {
		return p.before + now.Sub(blind)
	}
	return now.Sub(p.changed)
}

// Observe records a Lease as it was read now. The first observation of a Mac starts its
// timer; it is no change.
func (p *Pulses) Observe(mac string, renewed, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[string]*pulse{}
	}
	have, known := p.seen[mac]
	switch {
	case !known:
		p.seen[mac] = &pulse{renewed: renewed, changed: now}
	case renewed.IsZero():
		have.renewed = renewed // emptied or deleted: no sign of life
	case !have.renewed.Equal(renewed):
		*have = pulse{renewed: renewed, changed: now, seen: true}
	}
}

// Looked records that the operator can observe now.
func (p *Pulses) Looked(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked = now
}

// Blind records that until now the operator could observe nothing, since it last could. A Mac that was
// silent then remains so: the API server may fail every few minutes. Every other silence begins again.
func (p *Pulses) Blind(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, have := range p.seen {
		if s := have.silence(p.blind, p.looked); s >= silentAfter {
			have.before = max(have.before, s)
		}
	}
	p.blind, p.looked = now, now
}

// Of returns what was observed of a Mac; false if it was never observed.
func (p *Pulses) Of(mac string, now time.Time) (Pulse, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, known := p.seen[mac]
	if !known {
		return Pulse{}, false
	}
	return Pulse{Renewed: have.renewed, Seen: have.seen && !p.blind.After(have.changed), Silence: have.silence(p.blind, now)}, true
}

// Forget drops a deleted Mac.
func (p *Pulses) Forget(mac string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, mac)
}
