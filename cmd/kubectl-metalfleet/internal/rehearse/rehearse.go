// Package rehearse answers `plan`: what would happen if a ModelDeployment were
// applied.
//
// It owns the steps from a manifest to Macs, as a pure function over the objects
// of the API server: the reconciler's own decisions (modeldeployment.Rehearsal),
// the arithmetic of memory (metal/footprint) and placement's snapshot, one step
// after the other until nothing changes. It does not guess: if the source was not
// inspected yet, the answer is "unknown", with everything that is known.
//
// Start reading at Ask.
package rehearse

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/modeldeployment"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Verdict is the answer in a word.
type Verdict string

// The verdicts.
const (
	Fits       Verdict = "Fits"
	DoesNotFit Verdict = "DoesNotFit"
	Unknown    Verdict = "Unknown"
)

// World is what the API server holds.
type World struct {
	Now         time.Time
	Macs        []v1alpha1.MacNode
	Replicas    []v1alpha1.ModelReplica
	Deployments []v1alpha1.ModelDeployment
	Revisions   []appsv1.ControllerRevision
	// Class is the PriorityClass that the deployment names; nil where there is
	// none.
	Class *schedulingv1.PriorityClass
	// Profile is the ModelProfile that the deployment names; nil where there is
	// none.
	Profile *v1alpha1.ModelProfile
	// Rules of placement that an administrator set; NoRules says why they are
	// not known.
	Rules   plan.Rules
	NoRules string
}

// Question is one deployment as it would be stored.
type Question struct {
	Deployment *v1alpha1.ModelDeployment
	// Exists is true if it is stored already, perhaps with another spec.
	Exists bool
	// Facts from the headers of local files, and which folder or file they are
	// of; used where the fleet knows no record of the source.
	Facts    *model.Facts
	FactsDir string
}

// Answer is what would happen.
type Answer struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Exists    bool    `json:"exists"`
	Verdict   Verdict `json:"verdict"`
	// Reason and Message as the condition Accepted would have them, or Placed
	// of the first replica without a Mac.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Model is absent where the source is not known.
	Model *Model `json:"model,omitempty"`
	// Need of each replica; absent where it cannot be computed.
	Need *Need `json:"need,omitempty"`
	// Replicas as they would be in the end.
	Replicas []Replica `json:"replicas"`
	// Removed are the replicas that would be deleted, in this order.
	Removed []string `json:"removed,omitempty"`
	// Swaps counts those of them that are deleted first to make room for the new
	// revision.
	Swaps int `json:"swaps,omitempty"`
	// Preempted are the replicas of others that would give their room, as
	// NAMESPACE/NAME.
	Preempted []string `json:"preempted,omitempty"`
	// Macs and what each says to the first replica without a Mac, or, while the
	// source is unknown, what is free there.
	Macs  []Mac    `json:"macs"`
	Notes []string `json:"notes,omitempty"`
}

// Model is where the dimensions come from.
type Model struct {
	From         string `json:"from"`
	Architecture string `json:"architecture"`
	Quantization string `json:"quantization,omitempty"`
	Commit       string `json:"commit,omitempty"`
	Digest       string `json:"digest,omitempty"`
}

// Need is the memory of one replica by its terms: bytes, all estimates.
type Need struct {
	Context        v1alpha1.ContextLimits `json:"context"`
	WeightsBytes   int64                  `json:"weightsBytes"`
	KVBytes        int64                  `json:"kvBytes"`
	TransientBytes int64                  `json:"transientBytes"`
	PooledBytes    int64                  `json:"pooledBytes"`
	OverheadBytes  int64                  `json:"overheadBytes"`
	TotalBytes     int64                  `json:"totalBytes"`
	// ReservedBytes are promised: the total, or memory.limit where it is more.
	ReservedBytes int64 `json:"reservedBytes"`
	OnDemand      bool  `json:"onDemand,omitempty"`
}

// Replica is one as it would be.
type Replica struct {
	Name string `json:"name"`
	Slot int32  `json:"slot"`
	// Mac is empty where it would have none.
	Mac     string `json:"mac,omitempty"`
	Stays   bool   `json:"stays,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// Mac is a Mac as a candidate for a replica.
type Mac struct {
	Name      string `json:"name"`
	Fits      bool   `json:"fits"`
	FreeBytes int64  `json:"freeBytes"`
	Verdict   string `json:"verdict"`
}

// Ask answers the question.
func Ask(w World, q Question) (Answer, error) {
	d := q.Deployment
	a := Answer{Namespace: d.Namespace, Name: d.Name, Exists: q.Exists, Verdict: DoesNotFit, Replicas: []Replica{}, Macs: []Mac{}}
	r := modeldeployment.Rehearsal{Now: w.Now, Deployment: d, Deployments: w.Deployments, Macs: w.Macs, Revisions: revisionsOf(d, w.Revisions), Class: w.Class, Profile: w.Profile}
	if w.NoRules != "" {
		a.Notes = append(a.Notes, w.NoRules)
	}
	outcome, err := r.Accept()
	if err != nil {
		return a, err
	}
	from := "the inspection of the source by this fleet"
	if outcome.Status == metav1.ConditionUnknown {
		if record, where := elsewhere(w, q); record != nil {
			r.Record, from = record, where
			if outcome, err = r.Accept(); err != nil {
				return a, err
			}
		}
	}
	a.Reason, a.Message = outcome.Reason, outcome.Message
	switch {
	case outcome.Engine != nil:
	case outcome.Status == metav1.ConditionUnknown:
		a.Verdict = Unknown
		a.unknown(w, q)
		return a, nil
	default:
		return a, nil
	}
	a.Model = describe(outcome.Engine.Model, from)
	if a.Need, err = need(*outcome.Engine, d); err != nil {
		return a, err
	}
	return a, a.settle(w, q, r, outcome)
}

// revisionsOf are the revisions of one deployment.
func revisionsOf(d *v1alpha1.ModelDeployment, all []appsv1.ControllerRevision) []appsv1.ControllerRevision {
	return slices.DeleteFunc(slices.Clone(all), func(r appsv1.ControllerRevision) bool {
		owner := metav1.GetControllerOf(&r)
		return owner == nil || owner.UID != d.UID
	})
}

// elsewhere finds the record of the same source in another deployment, the
// newest first, else makes one of local headers.
func elsewhere(w World, q Question) (record *model.Record, from string) {
	m := q.Deployment.Spec.Model.Resolved()
	var newest *appsv1.ControllerRevision
	for i := range w.Revisions {
		r := &w.Revisions[i]
		e, err := fleet.DecodeEngine(r.Data.Raw)
		if err != nil || e.Source != m.Source || e.SHA256 != m.SHA256 || e.Revision != m.Revision || !slices.Equal(e.Files, m.Files) {
			continue
		}
		if newest == nil || newest.CreationTimestamp.Before(&r.CreationTimestamp) {
			newest, record = r, &e.Model
		}
	}
	if newest != nil {
		return record, fmt.Sprintf("deployment %s/%s with the same source", newest.Namespace, newest.Labels[v1alpha1.LabelDeployment])
	}
	if q.Facts != nil {
		return &model.Record{Source: m.Source, Facts: *q.Facts}, "the headers in " + q.FactsDir
	}
	return nil, ""
}

func describe(m model.Record, from string) *Model {
	return &Model{From: from, Architecture: m.Facts.Architecture, Quantization: m.Facts.Quantization, Commit: m.Commit, Digest: m.Digest}
}

func need(e fleet.Engine, d *v1alpha1.ModelDeployment) (*Need, error) {
	terms, err := footprint.Estimate(e.Model.Facts, footprint.Context{
		Tokens: e.Context.MaxTokens, Sequences: e.Context.MaxConcurrentRequests, CacheTokens: e.Context.KVCacheTokens, CacheQueue: e.CacheQueueBytes, Adapters: e.Model.AdapterBytes()})
	if err != nil {
		return nil, err
	}
	reserved, err := e.ReservedBytes()
	if err != nil {
		return nil, err
	}
	return &Need{Context: e.Context, WeightsBytes: terms.Weights, KVBytes: terms.KV, TransientBytes: terms.Transient, PooledBytes: terms.Pooled,
		OverheadBytes: terms.Overhead, TotalBytes: terms.Total(), ReservedBytes: reserved, OnDemand: fleet.Residency(d.Spec.Residency).OnDemand()}, nil
}

// unknown fills the answer for a source that was not inspected.
func (a *Answer) unknown(w World, q Question) {
	d := q.Deployment
	nobody := v1alpha1.ModelReplica{}
	nobody.Spec.Model.VouchedBy = []string{model.VoucherPreview}
	nobody.Spec.Placement, nobody.Spec.Residency = d.Spec.Placement, fleet.Residency(d.Spec.Residency)
	a.Macs = macs(plan.NewSnapshot(w.Macs, w.Replicas, w.Now), &nobody)
	var asked []string
	for _, m := range fleet.Asked(d, w.Macs) {
		asked = append(asked, m.Name)
	}
	if len(asked) > 0 {
		a.Notes = append(a.Notes, "once applied, the source is inspected by "+strings.Join(asked, ", ")+", and the memory requirement becomes known")
	}
	a.Notes = append(a.Notes, "to compute the memory requirement now, pass the model's files on this machine with --model")
}

// macs asks placement about every Mac.
func macs(s *plan.Snapshot, r *v1alpha1.ModelReplica) []Mac {
	out := []Mac{}
	for _, c := range s.Candidates(r) {
		out = append(out, Mac{Name: c.Mac, Fits: c.Fits, FreeBytes: c.FreeBytes, Verdict: c.Why})
	}
	return out
}

// scaledToZero reports whether no replica is wanted.
func scaledToZero(d *v1alpha1.ModelDeployment) bool { return fleet.Wanted(d) == 0 }

// becomeReady makes a replica count as one that answers.
func becomeReady(r *v1alpha1.ModelReplica) {
	meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady})
}
