package memory

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// residueBound is how many bytes may be left where no model is loaded.
const residueBound = footprint.GiB

// Residue is what is left where no engine has a process, in bytes.
type Residue struct {
	// Processes are the footprints of this agent and of every process that it
	// started and that still lives.
	Processes int64
	// Reserved in the ledger for replicas that are no longer assigned.
	Reserved int64
}

// Divergence detects engines whose memory gauges disagree, and memory in use
// while no model is loaded. Its zero value is ready to use.
type Divergence struct {
	since   map[Key]time.Time // per engine, since when its gauges disagree
	residue time.Time         // since when memory is in use while no model is loaded
}

// gaugeBound is by how much the gauges of an engine may disagree, in bytes: a
// tenth of the largest, at least 1 GiB and at most 5 GiB.
func gaugeBound(gauge int64) int64 {
	return min(5*footprint.GiB, max(footprint.GiB, gauge/10))
}

// Observe evaluates one reading; a disagreement that lasts for 10 s is reported.
// It is shown to people and never affects admission or pressure.
func (d *Divergence) Observe(r Reading, left Residue) Finding {
	since := map[Key]time.Time{}
	var found []string
	var bytes int64
	for _, e := range r.Engines {
		n, what := disagreement(e)
		if what == "" {
			continue
		}
		first, ok := d.since[e.Key]
		if !ok {
			first = r.Now
		}
		if since[e.Key] = first; r.Now.Sub(first) >= apart {
			found, bytes = append(found, fmt.Sprintf("replica %s, epoch %d: %s", e.Key.UID, e.Key.Epoch, what)), bytes+n
		}
	}
	d.since = since
	if len(found) > 0 {
		return Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEngineDiverged, Bytes: bytes,
			Message: strings.Join(found, "; ") + ". Drain the replica to free the memory, and report these figures with its engine's log"}
	}
	if f, ok := d.left(r, left); ok {
		return f
	}
	return Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonGaugesAgree, Message: "all memory that engines hold is accounted for"}
}

// disagreement returns by how many bytes the gauges of an engine contradict one
// another, with an explanation. It is empty if they agree or cannot be compared:
// an engine that loads or ends changes too quickly, and one that has not reported
// yet has no figures.
func disagreement(e EngineReading) (int64, string) {
	if !e.FootprintKnown || e.Loading || e.Stopping || e.Active+e.Accounted == 0 {
		return 0, ""
	}
	bound := gaugeBound(e.Gauge())
	if n := e.Footprint - e.Active - e.Pooled; n > bound {
		return n, fmt.Sprintf("its process holds %s, of which %s are outside its back end (%s active, %s pooled)", formatBytes(e.Footprint), formatBytes(n), formatBytes(e.Active), formatBytes(e.Pooled))
	}
	// A running prompt has transient buffers, which are active and not accounted
	// for.
	if n := e.Active - e.Accounted; n > bound && e.Idle() {
		return n, fmt.Sprintf("it is idle and has %s active, but weights and KV cache account for %s", formatBytes(e.Active), formatBytes(e.Accounted))
	}
	if n := e.Accounted - e.Footprint; n > bound {
		return n, fmt.Sprintf("weights and KV cache account for %s, but its process holds %s: the system reports too little", formatBytes(e.Accounted), formatBytes(e.Footprint))
	}
	return 0, ""
}

// left reports memory that is in use while no engine runs.
func (d *Divergence) left(r Reading, left Residue) (Finding, bool) {
	if len(r.Engines) > 0 || left.Processes <= residueBound && left.Reserved <= 0 {
		d.residue = time.Time{}
		return Finding{}, false
	}
	if d.residue.IsZero() {
		d.residue = r.Now
	}
	if r.Now.Sub(d.residue) < apart {
		return Finding{}, false
	}
	return Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResidue, Bytes: max(0, left.Processes) + max(0, left.Reserved),
		Message: fmt.Sprintf("no model is loaded, but processes of the agent hold %s and %s are still reserved: end the processes named in the agent's log; a restart is not needed",
			v1alpha1.FormatBytes(left.Processes), v1alpha1.FormatBytes(left.Reserved))}, true
}
