// Package history reads the revisions of a deployment: which exist, which one
// serves, and to which one an undo returns.
//
// It owns this choice as pure functions. A revision without a record of its cause
// is reported as such.
//
// Start reading at Of.
package history

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Revision is one line of a history.
type Revision struct {
	Number  int64     `json:"revision"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Source  string    `json:"source,omitempty"`
	Context string    `json:"context,omitempty"`
	// Replicas of it that live.
	Replicas int `json:"replicas"`
	// State: "serves" (it did last with all wanted replicas), "wanted", "halted",
	// or empty.
	State string `json:"state,omitempty"`

	spec *fleet.Spec
}

// History of a deployment, the oldest first.
type History []Revision

// Of reads the revisions of a deployment among all.
func Of(d *v1alpha1.ModelDeployment, all []appsv1.ControllerRevision, replicas []v1alpha1.ModelReplica) History {
	var out History
	for i := range all {
		r := &all[i]
		if len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != d.UID {
			continue
		}
		line := Revision{Number: r.Revision, Name: r.Name, Created: r.CreationTimestamp.Time, State: stateOf(d, r.Name)}
		if e, err := fleet.DecodeEngine(r.Data.Raw); err == nil {
			line.Source, line.Context = e.Source, fmt.Sprintf("%d tokens, %d concurrent requests, %d KV cache tokens", e.Context.MaxTokens, e.Context.MaxConcurrentRequests, e.Context.KVCacheTokens)
			if e.Revision != "" {
				line.Source += "@" + e.Revision
			}
		}
		if text, has := r.Annotations[v1alpha1.AnnotationSpec]; has {
			if spec, err := fleet.DecodeSpec(text); err == nil {
				line.spec = &spec
			}
		}
		for j := range replicas {
			if x := &replicas[j]; x.Spec.DeploymentRef.UID == string(d.UID) && x.Spec.Revision == r.Name && x.DeletionTimestamp.IsZero() && !fleet.Prefetches(x) {
				line.Replicas++
			}
		}
		out = append(out, line)
	}
	slices.SortFunc(out, func(a, b Revision) int { return int(a.Number - b.Number) })
	return out
}

func stateOf(d *v1alpha1.ModelDeployment, name string) string {
	halt := d.Status.Rollout.Halt
	switch {
	case halt != nil && halt.Revision == name:
		return "halted"
	case name == d.Status.CurrentRevision:
		return "serves"
	case name == d.Status.UpdateRevision:
		return "wanted"
	}
	return ""
}

// Undo changes a spec back to the revision with a number, or with 0 to the one that
// served before the current spec. It keeps spec.profileName if the profile has not
// changed since; otherwise it writes the settings that the profile had then, and
// pinned is true.
func (h History) Undo(d *v1alpha1.ModelDeployment, number int64, profiles []v1alpha1.ModelProfile) (to Revision, pinned bool, err error) {
	to, err = h.target(d, number)
	if err != nil {
		return to, false, err
	}
	if to.spec == nil {
		return to, false, fmt.Errorf("revision %d (%s) does not contain its spec: set spec.model and spec.context manually", to.Number, to.Name)
	}
	spec := *to.spec
	same := func(p v1alpha1.ModelProfile) bool {
		return p.Name == spec.ProfileName && equality.Semantic.DeepEqual(p.Spec, *spec.Profile)
	}
	if pinned = spec.Profile != nil && !slices.ContainsFunc(profiles, same); pinned {
		spec = spec.Pinned()
	}
	spec.WriteTo(&d.Spec)
	return to, pinned, nil
}

func (h History) target(d *v1alpha1.ModelDeployment, number int64) (Revision, error) {
	if d.Spec.Rollout.Paused {
		return Revision{}, fmt.Errorf("the rollout of %s is paused; resume it first with `kubectl metalfleet rollout resume %s`", d.Name, d.Name)
	}
	if number > 0 {
		i := slices.IndexFunc(h, func(r Revision) bool { return r.Number == number })
		if i < 0 {
			return Revision{}, fmt.Errorf("%s has no revision %d; `kubectl metalfleet rollout history %s` lists its revisions", d.Name, number, d.Name)
		}
		return h[i], nil
	}
	// In the middle of a rollout, what serves; else the newest before that.
	served, wanted := d.Status.CurrentRevision, d.Status.UpdateRevision
	for _, r := range slices.Backward(h) {
		if r.Name != wanted && (r.Name == served || served == wanted) {
			return r, nil
		}
	}
	return Revision{}, fmt.Errorf("%s has no earlier revision", d.Name)
}
