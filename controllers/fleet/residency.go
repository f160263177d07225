package fleet

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// defaultIdleSeconds is how long an OnDemand model stays in memory without requests.
const defaultIdleSeconds = 600

// Residency resolves the defaults: Always, and 600 s of idling for OnDemand. It is not part
// of an Engine: an engine in memory behaves the same, so a change reaches existing replicas
// in place.
func Residency(s v1alpha1.ResidencySpec) v1alpha1.Residency {
	if s.Policy != v1alpha1.ResidencyOnDemand {
		return v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}
	}
	return v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand,
		IdleSeconds: ptr.Deref(s.IdleSeconds, defaultIdleSeconds), EvictionPriority: s.EvictionPriority}
}

// Loaded reports whether a replica holds its model in memory, as its Mac last reported.
func Loaded(r *v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionLoaded)
}

// Promise is the memory reserved on a Mac, in bytes, including draining replicas until they
// are released.
type Promise struct {
	// Always is the sum over the replicas that stay in memory.
	Always int64
	// OnDemand lists the requirements of those that share the rest, in a fixed order. They
	// are not added up: each is loaded when a request arrives.
	OnDemand []int64
}

// Add counts a replica.
func (p *Promise) Add(r *v1alpha1.ModelReplica) {
	if r.Spec.Residency.OnDemand() {
		p.OnDemand = append(p.OnDemand, r.Spec.ReservedBytes)
		return
	}
	p.Always += r.Spec.ReservedBytes
}

// Remove reverts Add.
func (p *Promise) Remove(r *v1alpha1.ModelReplica) {
	if !r.Spec.Residency.OnDemand() {
		p.Always -= r.Spec.ReservedBytes
		return
	}
	if i := slices.Index(p.OnDemand, r.Spec.ReservedBytes); i >= 0 {
		p.OnDemand = slices.Delete(p.OnDemand, i, i+1)
	}
}

// OnDemandBytes is what all of them would need at once.
func (p *Promise) OnDemandBytes() int64 {
	var sum int64
	for _, n := range p.OnDemand {
		sum += n
	}
	return sum
}
