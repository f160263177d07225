package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// kind is why a Mac was rejected, in the order in which reasons are listed.
type kind int

const (
	open kind = iota - 1 // none
	tooSmall
	short
	overcommitted
	noDisk
	uneven
	cordoned
	notReady
	unreachable
	shuttingDown
	stranded
	skewed
	avoided
	looking
	withoutFiles
	unvouched
	unknownCapacity
	full
	crowded
	crowdedDisk
	hasKin
	constraint
)

// rejection is one Mac that cannot hold a replica.
type rejection struct {
	mac  string
	kind kind
	// bytes is the Mac's capacity (tooSmall), the rest of it after what stays in memory
	// there (short), or its available disk space (noDisk).
	bytes int64
	// text of a constraint, or the label over which replicas would be uneven.
	text string
	// left is how much longer the Mac is avoided.
	left time.Duration
}

// diskAgain is when a full disk is checked again: its figures alone trigger no pass.
const diskAgain = time.Minute

// explain combines the rejections of all Macs into a decision.
func (v *view) explain() Decision {
	r := v.r
	rejected := make([]rejection, 0, len(v.s.macs))
	for i := range v.s.macs {
		if why, ok := v.filter(i); !ok {
			rejected = append(rejected, why)
		}
	}
	if len(rejected) == 0 {
		return Decision{Reason: v1alpha1.ReasonNoCandidates, Message: "the fleet has no MacNode; join a Mac"}
	}
	has := func(k kind) bool {
		return slices.ContainsFunc(rejected, func(x rejection) bool { return x.kind == k })
	}
	d := Decision{Reason: reasonOf(rejected), Message: compact(r, rejected)}
	if has(stranded) {
		d.Message += "; reboot the Mac whose condition WiredStranded is True: `kubectl describe mac` shows the stranded memory"
	}
	for _, x := range rejected {
		if x.kind == avoided && (d.RetryAfter == 0 || x.left < d.RetryAfter) {
			d.RetryAfter = x.left
		}
	}
	if has(noDisk) && (d.RetryAfter == 0 || d.RetryAfter > diskAgain) {
		d.RetryAfter = diskAgain
	}
	switch {
	case d.Reason == v1alpha1.ReasonTooLarge:
		d.Message += eachCapacity(r.Spec.ReservedBytes, rejected) +
			"; lower context.kvCacheTokens or context.maxConcurrentRequests, use a smaller quantization, or add a larger Mac"
	case has(short) || has(overcommitted):
		d.Message += "; scale down or delete another deployment, make a rarely used one OnDemand (residency.policy), or add a Mac"
	case has(noDisk):
		d.Message += "; free disk space on these Macs, or delete models that are no longer needed"
	case has(uneven):
		d.Message += "; add a Mac to the domain with the fewest replicas, raise maxSkew, or set whenUnsatisfiable: ScheduleAnyway"
	}
	return d
}

// reasonOf returns the overall reason: too large for every Mac even if it were empty, no
// room now, or no candidate at all.
func reasonOf(rejected []rejection) string {
	count := map[kind]int{}
	for _, r := range rejected {
		count[r.kind]++
	}
	switch {
	case count[tooSmall] > 0 && count[tooSmall]+count[constraint] == len(rejected):
		return v1alpha1.ReasonTooLarge
	case count[short]+count[overcommitted]+count[noDisk] > 0:
		return v1alpha1.ReasonNoRoom
	default:
		return v1alpha1.ReasonNoCandidates
	}
}

// compact summarizes all rejections in one line: "3 Macs: 2 short of memory (need 41.2 GiB,
// largest free 37.9 GiB), 1 cordoned".
func compact(r *v1alpha1.ModelReplica, rejected []rejection) string {
	groups := map[string][]rejection{}
	for _, x := range rejected {
		groups[x.words()] = append(groups[x.words()], x)
	}
	keys := make([]string, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(groups[a][0].kind, groups[b][0].kind), cmp.Compare(a, b))
	})
	parts := make([]string, 0, len(keys))
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%d %s%s", len(groups[k]), k, figures(r, groups[k])))
	}
	noun := "Macs"
	if len(rejected) == 1 {
		noun = "Mac"
	}
	return fmt.Sprintf("%d %s: %s", len(rejected), noun, strings.Join(parts, ", "))
}

func (r rejection) words() string {
	switch r.kind {
	case tooSmall:
		return "too small even if empty"
	case short:
		return "short of memory"
	case overcommitted:
		return "at the limit of onDemandOvercommitPercent"
	case noDisk:
		return "without disk space for the model"
	case uneven:
		return "at the limit of topologySpreadConstraints for " + r.text
	case cordoned:
		return "cordoned"
	case notReady:
		return "not ready"
	case unreachable:
		return "not reachable by any gateway (see Reachable in `kubectl describe mac`)"
	case shuttingDown:
		return "shutting down"
	case skewed:
		return "with an agent version that this operator does not support (see AgentCurrent in `kubectl describe mac`)"
	case stranded:
		return "with stranded memory"
	case avoided:
		return "avoided after a refusal"
	case looking:
		return "still inspecting the source"
	case withoutFiles:
		return "without the model's files"
	case unvouched:
		return "waiting for a second Mac to confirm what the source contains"
	case unknownCapacity:
		return "of unknown capacity"
	case full:
		return "at the maximum number of replicas"
	case crowded:
		return "at the namespace's share of its replicas (replicasPerMac)"
	case crowdedDisk:
		return "at the namespace's share of its disk for OnDemand models (replicasPerMac)"
	case hasKin:
		return "with the weights for another replica of the deployment"
	default:
		return r.text
	}
}

// figures adds the bytes of a group, if its reason has any.
func figures(r *v1alpha1.ModelReplica, group []rejection) string {
	need := r.Spec.ReservedBytes
	var largest int64
	for _, x := range group {
		largest = max(largest, x.bytes)
	}
	switch group[0].kind {
	case tooSmall:
		return fmt.Sprintf(" (need %s, largest capacity %s)", v1alpha1.FormatBytes(need), v1alpha1.FormatBytes(largest))
	case short:
		return fmt.Sprintf(" (need %s, largest free %s)", v1alpha1.FormatBytes(need), v1alpha1.FormatBytes(largest))
	case noDisk:
		return fmt.Sprintf(" (need %s, largest free %s)", v1alpha1.FormatBytes(r.Spec.Model.DiskBytes()), v1alpha1.FormatBytes(largest))
	default:
		return ""
	}
}

// eachCapacity lists the Macs that are too small, up to 20 of them.
func eachCapacity(need int64, rejected []rejection) string {
	const shown = 20
	var b strings.Builder
	n := 0
	for _, r := range rejected {
		if n++; n > shown {
			fmt.Fprintf(&b, "; and %d more", len(rejected)-shown)
			break
		}
		if r.kind == tooSmall {
			fmt.Fprintf(&b, "; %s can reserve %s of the required %s", r.mac, v1alpha1.FormatBytes(r.bytes), v1alpha1.FormatBytes(need))
		} else {
			fmt.Fprintf(&b, "; %s is %s", r.mac, r.words())
		}
	}
	return b.String()
}

// chosen returns the message for the chosen Mac, with the reserved memory.
func (st *state) chosen(r *v1alpha1.ModelReplica) string {
	need, capacity := v1alpha1.FormatBytes(r.Spec.ReservedBytes), v1alpha1.FormatBytes(st.capacity)
	before := v1alpha1.FormatBytes(st.promise.Always)
	if r.Spec.Residency.OnDemand() {
		return fmt.Sprintf("placed on %s: needs an estimated %s when loaded; %s of %s are reserved for Always models, and %d other OnDemand models share the rest",
			st.mac.Name, need, before, capacity, len(st.promise.OnDemand))
	}
	return fmt.Sprintf("placed on %s: reserved an estimated %s for this replica; %s of %s were reserved before",
		st.mac.Name, need, before, capacity)
}
