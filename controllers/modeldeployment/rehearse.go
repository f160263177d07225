package modeldeployment

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// Rehearsal returns what the reconciler would do with a deployment, with the same decisions
// and without an effect. A program that previews a manifest fills it from the API server.
type Rehearsal struct {
	Now        time.Time
	Deployment *v1alpha1.ModelDeployment
	// Deployments of the whole cluster, for the names.
	Deployments []v1alpha1.ModelDeployment
	Macs        []v1alpha1.MacNode
	// Revisions of this deployment.
	Revisions []appsv1.ControllerRevision
	// Class is the PriorityClass that the deployment names; nil if there is none of that
	// name.
	Class *schedulingv1.PriorityClass
	// Profile is the ModelProfile that the deployment names; nil if there is none of that
	// name.
	Profile *v1alpha1.ModelProfile
	// Record replaces the result of an inspection; nil: what is known.
	Record *model.Record
}

// Outcome is the condition Accepted, and the engine if it is true.
type Outcome struct {
	Status          metav1.ConditionStatus
	Reason, Message string
	Engine          *fleet.Engine
	// Revision is the name that the engine's ControllerRevision has or would get.
	Revision string
}

// Accept decides like a pass of the reconciler.
func (r Rehearsal) Accept() (Outcome, error) {
	s, err := r.scope()
	if err != nil {
		return Outcome{}, err
	}
	v := accept(s)
	out := Outcome{Status: v.condition.Status, Reason: v.condition.Reason, Message: v.condition.Message, Engine: v.engine}
	if r.Record != nil && !v.crowded && !slices.Contains(independent(), v.condition.Reason) {
		out = resolved(s.effective(), *r.Record)
	}
	if out.Engine == nil {
		return out, nil
	}
	out.Revision, err = r.revisionOf(s, *out.Engine)
	return out, err
}

// independent are the reasons of a refusal that do not depend on the record.
func independent() []string {
	return []string{v1alpha1.ReasonInvalidAffinity, v1alpha1.ReasonNameConflict, v1alpha1.ReasonPriorityClassNotFound, v1alpha1.ReasonProfileNotFound, v1alpha1.ReasonProfileConflict}
}

// resolved judges a record that no Mac of the fleet reported for this source.
func resolved(spec *v1alpha1.ModelDeploymentSpec, record model.Record) Outcome {
	if refusal := fleet.Oversized(spec); refusal != nil {
		return Outcome{Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message}
	}
	record.VouchedBy = []string{model.VoucherPreview} // as if it were accepted
	engine, refusal := fleet.Resolve(spec, record)
	if refusal != nil {
		return Outcome{Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message}
	}
	return Outcome{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted, Message: describe(&record), Engine: &engine}
}

func (r Rehearsal) scope() (*scope, error) {
	revisions, err := decodeRevisions(r.Revisions)
	if err != nil {
		return nil, err
	}
	return &scope{now: r.Now, deployment: r.Deployment, holders: fleet.Holders(r.Deployments), otherNames: otherNames(r.Deployment, r.Deployments), macs: r.Macs, revisions: revisions, class: r.Class, profile: r.Profile}, nil
}

// revisionOf finds the revision of an engine, or names the one that would be created.
func (r Rehearsal) revisionOf(s *scope, e fleet.Engine) (string, error) {
	hash, err := e.Hash()
	if err != nil {
		return "", err
	}
	for _, have := range s.revisions {
		if other, err := have.engine.Hash(); err == nil && other == hash {
			return have.object.Name, nil
		}
	}
	return revisionName(r.Deployment, hash), nil
}

// Step is what one pass would do, in addition to the replicas that exist.
type Step struct {
	Create []v1alpha1.ModelReplica
	Remove []*v1alpha1.ModelReplica
	// Swap is the one replica that may take the memory of an old one; empty: none.
	Swap types.UID
	// Status that the pass would write.
	Status v1alpha1.ModelDeploymentStatus
}

// Step rehearses one pass. The deployment can only fall back to revisions in r.Revisions.
func (r Rehearsal) Step(o Outcome, existing []v1alpha1.ModelReplica) (Step, error) {
	existing, _ = fleet.Serving(existing)
	if o.Engine == nil {
		return Step{}, fmt.Errorf("plan %s/%s: the deployment is not accepted (%s)", r.Deployment.Namespace, r.Deployment.Name, o.Reason)
	}
	s, err := r.scope()
	if err != nil {
		return Step{}, err
	}
	if s.current = s.named(o.Revision); s.current == nil {
		object := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: o.Revision}}
		s.revisions = append(s.revisions, revision{object: object, engine: *o.Engine})
		s.current = &s.revisions[len(s.revisions)-1]
	}
	s.replicas = slices.Clone(existing)
	s.verdict.engine, s.verdict.condition = o.Engine, status.True(v1alpha1.ConditionAccepted, o.Reason, o.Message)
	s.rollout, s.overdue = assess(s)
	c := plan(s.desired(), existing, r.Now)
	out := Step{Remove: c.remove, Swap: c.swap}
	for _, b := range c.create {
		replica, err := newReplica(s, b)
		if err != nil {
			return Step{}, err
		}
		replica.CreationTimestamp, replica.UID = metav1.NewTime(r.Now), types.UID("rehearsed-"+replica.Name)
		out.Create = append(out.Create, *replica)
	}
	s.replicas = append(s.replicas, out.Create...)
	for _, gone := range c.remove {
		s.markDeleted(gone.UID)
	}
	out.Status = deriveStatus(s)
	return out, nil
}
