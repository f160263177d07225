// Package turn decides which Mac is upgraded to a new agent next.
//
// It owns the order of the Macs of a class, what halts an upgrade, and which agent versions
// this operator serves. It is pure: the reconciler writes what it decides, and the kubectl
// plugin prints it. It never upgrades two Macs of a class at once, begins no upgrade while
// one of them is away without notice, and does not continue after a version failed on one. A Mac
// whose upgrade does not end is left out once an administrator cordons or deletes it.
//
// Start reading at Next, then standing.
package turn

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Settle is how long a Mac must be healthy with its new agent before the next one is
// upgraded: long enough for a crash on the first requests to show.
const Settle = 30 * time.Second

// State of the whole upgrade.
type State string

// States of the upgrade.
const (
	Idle      State = "Idle"      // there is no release
	Done      State = "Done"      // every reachable Mac runs it
	Upgrading State = "Upgrading" // a Mac is being upgraded
	Waiting   State = "Waiting"   // something has to change first
	Paused    State = "Paused"    // by the administrator
	Halted    State = "Halted"    // it failed on a Mac
)

// Place is the state of one Mac in the upgrade.
type Place string

// States of a Mac.
const (
	Current   Place = "Current"   // runs the version
	Underway  Place = "Underway"  // the upgrade was ordered
	Settling  Place = "Settling"  // runs it, but not for long enough
	Pending   Place = "Pending"   // waits for its turn
	Failed    Place = "Failed"    // rolled back, or rejected the archive
	Skipped   Place = "Skipped"   // cannot be upgraded now; it catches up later
	Away      Place = "Away"      // silent without notice: no upgrade begins
	NotMeant  Place = "NotMeant"  // the release is for another Mac
	Different Place = "Different" // busy with another order
)

// Standing is one Mac in the upgrade.
type Standing struct {
	Mac     string `json:"mac"`
	Version string `json:"version"`
	Place   Place  `json:"place"`
	Message string `json:"message"`
	// settles is how long it is still observed, and current how long it has run the
	// version.
	settles, current time.Duration
	wave             int
}

// Turn is the next action.
type Turn struct {
	State State `json:"state"`
	// Mac is the one whose turn it is; Start is true if it is to be ordered now.
	Mac     string     `json:"mac,omitempty"`
	Start   bool       `json:"-"`
	Message string     `json:"message"`
	Macs    []Standing `json:"macs"`
	// After is when to look again, if time alone changes the decision.
	After time.Duration `json:"-"`
}

// Mac is one Mac and the agent that was ordered for it.
type Mac struct {
	*v1alpha1.MacNode
	Order *v1alpha1.AgentOrder // nil: none
}

// Join pairs each Mac with its order.
func Join(macs []v1alpha1.MacNode, assigned []v1alpha1.MacAssignment) []Mac {
	orders := make(map[string]*v1alpha1.AgentOrder, len(assigned))
	for i := range assigned {
		orders[assigned[i].Name] = assigned[i].Spec.Agent
	}
	out := make([]Mac, len(macs))
	for i := range macs {
		out[i] = Mac{MacNode: &macs[i], Order: orders[macs[i].Name]}
	}
	return out
}

// Next decides the next action for the Macs of a class, for an operator of a version or of an
// unknown one. Macs are upgraded by wave, then by name; one that is being upgraded, or failed,
// precedes all that wait. A nil class has no release.
func Next(class *v1alpha1.MacClass, operator string, macs []Mac, now time.Time) Turn {
	if class == nil || class.Spec.Release == nil {
		return Turn{State: Idle, Message: "no version is requested"}
	}
	w := class.Spec.Release
	t := Turn{}
	for i := range macs {
		s := standing(w, macs[i], now)
		s.wave, s.current = waveOf(w, macs[i].MacNode), currentFor(macs[i].MacNode, now)
		t.Macs = append(t.Macs, s)
	}
	slices.SortFunc(t.Macs, order)
	if w.Mac != "" && !slices.ContainsFunc(t.Macs, func(s Standing) bool { return s.Mac == w.Mac }) {
		t.State, t.Message = Waiting, fmt.Sprintf("class %s has no Mac %s", class.Name, w.Mac)
		return t
	}
	t.decide(&class.Spec, now)
	if served, _, message := serves(operator, w.Version); served == metav1.ConditionFalse && t.Start {
		t.set(Waiting, nil, "this operator does not support the requested version: %s", message)
		t.Mac, t.Start = "", false
	}
	return t
}

// first returns the first Mac in a state.
func (t *Turn) first(p Place) *Standing {
	i := slices.IndexFunc(t.Macs, func(s Standing) bool { return s.Place == p })
	if i < 0 {
		return nil
	}
	return &t.Macs[i]
}

func (t *Turn) set(s State, mac *Standing, format string, args ...any) {
	t.State, t.Message = s, fmt.Sprintf(format, args...)
	if mac != nil {
		t.Mac = mac.Mac
	}
}

func (t *Turn) decide(c *v1alpha1.MacClassSpec, now time.Time) {
	w := c.Release
	failed, underway, settling := t.first(Failed), t.first(Underway), t.first(Settling)
	different, away, pending := t.first(Different), t.first(Away), t.first(Pending)
	switch {
	case failed != nil:
		t.set(Halted, failed, "Mac %s: %s; no other Mac is upgraded. Run `kubectl metalfleet upgrade-agents` again with a working version, or change spec.release of the class", failed.Mac, failed.Message)
	case underway != nil:
		t.set(Upgrading, underway, "Mac %s: %s. If this does not end, cordon or delete it to continue with others", underway.Mac, underway.Message)
	case settling != nil:
		t.set(Upgrading, settling, "Mac %s: %s", settling.Mac, settling.Message)
		t.After = settling.settles
	case different != nil:
		t.set(Waiting, different, "Mac %s: %s. If this does not end, cordon or delete it to continue with others", different.Mac, different.Message)
	case pending == nil:
		t.set(Done, nil, "%s", t.done(w))
	case w.State == v1alpha1.ReleasePaused:
		t.set(Paused, nil, "paused; `kubectl metalfleet upgrade-agents --resume` continues with Mac %s", pending.Mac)
	case away != nil:
		// One Mac is missing already, for unknown reasons: another Mac may have the only
		// remaining replica of a model, and must not stop as well.
		t.set(Waiting, away, "Mac %s: %s. Bring it back, cordon it or delete it to continue the upgrade", away.Mac, away.Message)
	case t.soaks(w, pending) > 0:
		t.After = t.soaks(w, pending)
		t.set(Waiting, pending, "Mac %s is next when its wave begins in %s", pending.Mac, t.After.Round(time.Second))
	case t.window(c.MaintenanceWindow, pending, now):
	default:
		t.set(Upgrading, pending, "Mac %s is next", pending.Mac)
		t.Start = true
	}
}

func (t *Turn) done(w *v1alpha1.AgentRelease) string {
	var left []string
	for _, s := range t.Macs {
		if s.Place == Skipped || s.Place == Away {
			left = append(left, s.Mac+" ("+s.Message+")")
		}
	}
	if len(left) > 0 {
		return fmt.Sprintf("all reachable Macs run %s; to be upgraded later: %s", w.Version, strings.Join(left, ", "))
	}
	return "all selected Macs run " + w.Version
}

// standing returns the state of one Mac. Its own upgrade takes precedence over reasons not
// to begin one.
func standing(w *v1alpha1.AgentRelease, mac Mac, now time.Time) Standing {
	s := Standing{Mac: mac.Name, Version: mac.Status.AgentVersion}
	at := func(p Place, format string, args ...any) Standing {
		s.Place, s.Message = p, fmt.Sprintf(format, args...)
		return s
	}
	order, up := w.Order(), mac.Status.AgentUpgrade
	ordered := equality.Semantic.DeepEqual(mac.Order, order)
	runs := mac.Status.AgentVersion == w.Version
	switch {
	case ordered && up.Is(order) && up.Failed():
		return at(Failed, "%s to %s (%s)", up.Phase, up.To, up.Message)
	case ordered && runs && isTrue(mac.MacNode, v1alpha1.ConditionReady) && !saysNo(mac.MacNode, v1alpha1.ConditionAccepting):
		if s.settles = settles(mac.MacNode, now); s.settles > 0 {
			return at(Settling, "runs %s, observed for another %s", w.Version, s.settles.Round(time.Second))
		}
		return at(Current, "runs %s", w.Version)
	case ordered || busy(mac):
		if why := leftOut(mac.MacNode); why != "" {
			return at(Skipped, "%s; %s", why, progress(mac.MacNode, up, mac.Order))
		}
		if ordered {
			return at(Underway, "%s", progress(mac.MacNode, up, order))
		}
		return at(Different, "still upgrading to %s, phase %s", up.To, up.Phase)
	case w.Mac != "" && w.Mac != mac.Name:
		return at(NotMeant, "not selected")
	case runs:
		return at(Current, "runs %s", w.Version)
	}
	p, message := reachable(mac.MacNode)
	return at(p, "%s", message)
}

// leftOut returns why an administrator wants no upgrade of a Mac; empty: it may be upgraded.
func leftOut(mac *v1alpha1.MacNode) string {
	switch {
	case !mac.DeletionTimestamp.IsZero():
		return "it is being deleted"
	case mac.Spec.Unschedulable:
		return "cordoned"
	}
	return ""
}

// reachable reports whether a Mac with another version can be upgraded.
func reachable(mac *v1alpha1.MacNode) (Place, string) {
	ready := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	why := leftOut(mac)
	switch {
	case why != "":
		return Skipped, why
	case ready == nil || ready.Reason == v1alpha1.ReasonNeverReported || mac.Status.AgentVersion == "":
		return Skipped, "its agent has not joined yet"
	case ready.Status != metav1.ConditionTrue && saysNo(mac, v1alpha1.ConditionAccepting):
		return Skipped, "its agent is stopped"
	case ready.Status != metav1.ConditionTrue:
		return Away, "unreachable for an unknown reason"
	case saysNo(mac, v1alpha1.ConditionAccepting):
		return Skipped, "its agent is stopping"
	}
	return Pending, "waiting"
}

// busy reports whether the Mac accepts no requests, or soon will not, because of another
// order.
func busy(mac Mac) bool {
	u := mac.Status.AgentUpgrade
	if u == nil || !u.Is(mac.Order) {
		return false
	}
	return u.Phase == v1alpha1.UpgradeDraining || u.Phase == v1alpha1.UpgradeTrial
}

func progress(mac *v1alpha1.MacNode, up *v1alpha1.AgentUpgrade, order *v1alpha1.AgentOrder) string {
	words := "requested; the agent has not responded yet"
	if up.Is(order) {
		words = strings.TrimSuffix(fmt.Sprintf("%s: %s", up.Phase, up.Message), ": ")
	}
	if !isTrue(mac, v1alpha1.ConditionReady) {
		words += "; the Mac is currently unreachable"
	}
	return words
}

// settles returns how long a Mac is still observed, by the operator's clock: from when it
// was first seen to run the ordered version.
func settles(mac *v1alpha1.MacNode, now time.Time) time.Duration {
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionAgentCurrent)
	if c == nil || c.Status != metav1.ConditionTrue {
		return Settle
	}
	return max(0, Settle-max(0, now.Sub(c.LastTransitionTime.Time)))
}

func isTrue(mac *v1alpha1.MacNode, kind string) bool {
	return meta.IsStatusConditionTrue(mac.Status.Conditions, kind)
}

func saysNo(mac *v1alpha1.MacNode, kind string) bool {
	return meta.IsStatusConditionFalse(mac.Status.Conditions, kind)
}
