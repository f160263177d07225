// Package explain answers `why`: which stage a model stands in, what holds it
// up, since when, and what a person can do.
//
// It owns the walk over the conditions of a deployment, its replicas and its
// Macs, as a pure function. It refuses words of its own for reasons: meaning
// and next step come from docs/how-to/troubleshoot.md, and why a Mac was not chosen
// from placement's own filter.
//
// Start reading at Deployment.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/docs"
)

// Stage is how far a model or one of its replicas got.
type Stage string

// The stages, in the order in which a replica goes through them; the first
// three and the last two are of a deployment.
const (
	StageOperator  Stage = "operator"  // its latest change was not looked at yet
	StageSource    Stage = "source"    // the source in spec.model is being inspected
	StageReplicas  Stage = "replicas"  // its replicas are to be made
	StagePlacement Stage = "placement" // a Mac is looked for
	StageMac       Stage = "mac"       // its Mac is silent or gone
	StageDownload  Stage = "download"  // weights come to the Mac's disk
	StageMemory    Stage = "memory"    // the Mac's ledger has to admit it
	StageLoad      Stage = "load"      // the engine reads the weights
	StageStart     Stage = "start"     // loaded, and not answering yet
	StageServing   Stage = "serving"   // requests are answered
	StageOnDemand  Stage = "on demand" // the next request loads it
	StageDraining  Stage = "draining"  // running requests end
	StageZero      Stage = "scaled to zero"
	StageSuspended Stage = "suspended"
)

// Story is the answer.
type Story struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Source    string `json:"source"`
	Ready     bool   `json:"ready"`
	// Available: requests are served, be it by an earlier revision.
	Available bool `json:"available"`
	// Count of ready and wanted replicas: "1/2".
	Count string `json:"replicasReady"`
	Stage Stage  `json:"stage"`
	// Holdup is absent where nothing holds it up.
	Holdup   *Holdup   `json:"holdup,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Replicas []Replica `json:"replicas"`
	// About is the question that Macs answers.
	About string `json:"about,omitempty"`
	Macs  []Mac  `json:"macs"`
}

// Holdup is what keeps a model or a replica where it is.
type Holdup struct {
	// Of names the replica that it is about; empty: the deployment.
	Of      string `json:"of,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Meaning of the reason, and the next step of a person; empty where all
	// there is to do is to wait.
	Meaning string `json:"meaning,omitempty"`
	Next    string `json:"nextStep,omitempty"`
	// Since when its condition is as it is; absent where no condition says so.
	Since *metav1.Time `json:"since,omitempty"`
}

// Replica is one replica and how far it got.
type Replica struct {
	Name   string  `json:"name"`
	Mac    string  `json:"mac,omitempty"`
	Stage  Stage   `json:"stage"`
	Holdup *Holdup `json:"holdup,omitempty"`
}

// Mac is what one Mac says to the question.
type Mac struct {
	Name    string `json:"name"`
	Chosen  bool   `json:"chosen,omitempty"`
	Fits    bool   `json:"fits,omitempty"`
	Verdict string `json:"verdict"`
}

// World is what was read of the cluster.
type World struct {
	Now      time.Time
	Macs     []v1alpha1.MacNode
	Replicas []v1alpha1.ModelReplica
}

// Deployment explains the state of a deployment.
func Deployment(d *v1alpha1.ModelDeployment, w World) Story {
	own := ownReplicas(d, w.Replicas)
	s := Story{Namespace: d.Namespace, Name: d.Name, Source: d.Spec.Model.Resolved().Source, Macs: []Mac{}, Replicas: []Replica{}}
	ready := 0
	for _, r := range own {
		if fleet.ReplicaReady(r) {
			ready++
		}
		s.Replicas = append(s.Replicas, replica(r))
	}
	s.Count = fmt.Sprintf("%d/%d", ready, fleet.Wanted(d))
	s.Ready = meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionReady) && d.DeletionTimestamp.IsZero()
	s.Available = meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionAvailable) && d.DeletionTimestamp.IsZero()
	s.Stage, s.Holdup = stage(d, s.Replicas, own)
	s.Notes = notes(d, s.Stage)
	switch {
	case s.Stage == StageSource:
		s.About, s.Macs = looking(d, w)
	case len(own) > 0 && s.Stage != StageZero && s.Stage != StageSuspended:
		subject := inQuestion(own, s.Holdup)
		s.About, s.Macs = candidates(d, subject, w)
	}
	return s
}

// ownReplicas are those of a deployment: the living first, in the order of
// their slots.
func ownReplicas(d *v1alpha1.ModelDeployment, all []v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for i := range all {
		if all[i].Spec.DeploymentRef.UID == string(d.UID) && !fleet.Prefetches(&all[i]) {
			out = append(out, &all[i])
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.ModelReplica) int {
		if a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() {
			return cmp.Compare(b2i(b.DeletionTimestamp.IsZero()), b2i(a.DeletionTimestamp.IsZero()))
		}
		return cmp.Or(cmp.Compare(a.Spec.Slot, b.Spec.Slot), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// stage of a deployment, and what holds it up: the least advanced of what it
// waits for.
func stage(d *v1alpha1.ModelDeployment, stories []Replica, own []*v1alpha1.ModelReplica) (Stage, *Holdup) {
	conditions := d.Status.Conditions
	accepted := meta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted)
	living := slices.DeleteFunc(slices.Clone(stories), func(r Replica) bool { return r.Stage == StageDraining })
	switch {
	case !d.DeletionTimestamp.IsZero():
		return StageDraining, leaving(d, own)
	case accepted == nil || d.Status.ObservedGeneration < d.Generation:
		return StageOperator, unseen(d)
	case d.Spec.Suspend && len(living) == 0:
		return StageSuspended, nil
	case fleet.Wanted(d) == 0 && len(living) == 0:
		return StageZero, nil
	case accepted.Status != metav1.ConditionTrue && len(living) == 0:
		return StageSource, holdup("", accepted)
	}
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil && ready.Status == metav1.ConditionTrue {
		if ready.Reason == v1alpha1.ReasonOnDemand {
			return StageOnDemand, nil
		}
		return StageServing, nil
	}
	stalled := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	if len(living) == 0 && stalled != nil && stalled.Status == metav1.ConditionTrue {
		return StageReplicas, holdup("", stalled)
	}
	if len(living) == 0 {
		return StageReplicas, &Holdup{Reason: v1alpha1.ReasonPending, Message: "the operator has not created a replica yet",
			Next: "wait a moment; if it persists, see the operator's log: `kubectl logs -n metalfleet-system deploy/metalfleet-operator`"}
	}
	least := slices.MinFunc(living, func(a, b Replica) int { return cmp.Compare(advance(a.Stage), advance(b.Stage)) })
	if least.Holdup == nil && stalled != nil && stalled.Status == metav1.ConditionTrue {
		return least.Stage, holdup("", stalled) // what there is serves
	}
	return least.Stage, least.Holdup
}

// advance orders the stages of a replica.
func advance(s Stage) int {
	return slices.Index([]Stage{StagePlacement, StageMac, StageDownload, StageMemory, StageLoad, StageStart, StageOnDemand, StageServing}, s)
}

// unseen: the operator has not looked at the deployment as it is.
func unseen(d *v1alpha1.ModelDeployment) *Holdup {
	message := fmt.Sprintf("the operator has not observed generation %d yet", d.Generation)
	return &Holdup{Reason: v1alpha1.ReasonPending, Message: message, Since: ptr.To(d.CreationTimestamp),
		Next: "wait a moment; if it persists, check that the operator is running: `kubectl get pods -n metalfleet-system`"}
}

// leaving: it is being deleted, and some Mac has not let go yet.
func leaving(d *v1alpha1.ModelDeployment, own []*v1alpha1.ModelReplica) *Holdup {
	h := &Holdup{Reason: v1alpha1.ReasonDraining, Message: "being deleted", Since: d.DeletionTimestamp}
	var waits []string
	for _, r := range own {
		if !fleet.Released(r) && r.Spec.NodeName != "" {
			waits = append(waits, r.Name+" on "+r.Spec.NodeName)
		}
	}
	if len(waits) > 0 {
		h.Message += "; not released yet: " + strings.Join(waits, ", ")
	}
	h.explain()
	return h
}

// notes are other problems or operations in progress, in addition to the stage.
func notes(d *v1alpha1.ModelDeployment, s Stage) []string {
	var out []string
	for _, kind := range []string{v1alpha1.ConditionDegraded, v1alpha1.ConditionProgressing} {
		c := meta.FindStatusCondition(d.Status.Conditions, kind)
		if c == nil || s == StageOperator {
			continue
		}
		degraded := kind == v1alpha1.ConditionDegraded && c.Status == metav1.ConditionTrue
		if degraded || v1alpha1.RolloutState(c.Reason).Replaces() || c.Reason == v1alpha1.ReasonProgressDeadline || c.Reason == v1alpha1.ReasonDraining {
			out = append(out, fmt.Sprintf("%s (%s): %s", kind, c.Reason, c.Message))
		}
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionRouted); c != nil && c.Status == metav1.ConditionFalse {
		out = append(out, fmt.Sprintf("not %s (%s): %s", c.Type, c.Reason, c.Message))
	}
	return out
}

// holdup makes one of a condition.
func holdup(of string, c *metav1.Condition) *Holdup {
	h := &Holdup{Of: of, Reason: c.Reason, Message: c.Message}
	if !c.LastTransitionTime.IsZero() {
		h.Since = ptr.To(c.LastTransitionTime)
	}
	h.explain()
	return h
}

func (h *Holdup) explain() {
	e, ok := docs.Explain(h.Reason)
	if ok {
		h.Meaning, h.Next = e.Meaning, e.Next
	}
}
