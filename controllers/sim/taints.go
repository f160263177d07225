package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/modelreplica"
)

// taintKey is the taint of this world, always NoExecute.
const taintKey = "maintenance"

// forEver is the time for which a taint is tolerated without tolerationSeconds.
const forEver = time.Duration(1<<63 - 1)

// tolerated is how long the replicas of a deployment stay on a tainted Mac, by its number.
func tolerated(i int) time.Duration { return []time.Duration{0, 3 * time.Minute, forEver}[i%3] }

// tolerates writes that into a placement.
func tolerates(p *v1alpha1.PlacementSpec, d time.Duration) {
	switch d {
	case 0:
	case forEver:
		p.Tolerations = []v1alpha1.Toleration{{Key: taintKey, Operator: corev1.TolerationOpExists}}
	default:
		p.Tolerations = []v1alpha1.Toleration{{Key: taintKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(d.Seconds()))}}
	}
}

// taint has a person taint a Mac, and remove the taint after a while.
func (w *world) taint(m *mac, d time.Duration) {
	if !m.tainted.IsZero() {
		return
	}
	m.tainted = w.now
	m.node.Spec.Taints = []v1alpha1.Taint{{Key: taintKey, Effect: corev1.TaintEffectNoExecute}}
	w.logf("%s is tainted for %s", m.node.Name, d)
	w.due()
	w.in(d, func() {
		m.tainted, m.node.Spec.Taints = time.Time{}, nil
		w.due()
	})
}

// evict does what the replicas' reconciler does about the taints of their Macs.
func (w *world) evict() {
	for _, r := range w.replicas {
		m := w.byName[r.Spec.NodeName]
		if m == nil || r.gone {
			continue
		}
		known := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionEvicting)
		c, left := modelreplica.Stay(&r.ModelReplica, &m.node, w.now)
		switch {
		case c == nil:
			meta.RemoveStatusCondition(&r.Status.Conditions, v1alpha1.ConditionEvicting)
		case left > 0 && known == nil:
			meta.SetStatusCondition(&r.Status.Conditions, *c)
			w.counts["taints tolerated for a while"]++
			w.in(left, w.due)
		case left == 0:
			w.checks.evicted(r, m)
			w.counts["evicted by a taint"]++
			w.remove(r)
		}
	}
}

// patience is how long the replicas of the replica's deployment stay on a tainted Mac.
func (w *world) patience(r *replica) time.Duration {
	for _, d := range w.deployments {
		if string(d.UID) == r.Spec.DeploymentRef.UID {
			return d.tolerated
		}
	}
	return 0
}

// evicted wants a replica to stay for as long as it tolerates the taint.
func (c *checks) evicted(r *replica, m *mac) {
	if stayed := c.w.now.Sub(m.tainted); m.tainted.IsZero() || stayed < c.w.patience(r)-time.Second {
		c.broken("%s leaves %s %s after the taint and tolerates it for %s", r.Name, m.node.Name, stayed, c.w.patience(r))
	}
}

// noticed is how long a taint may have its effect late: a pass.
const noticed = time.Second

// taints wants no replica to stay for longer on a tainted Mac than it tolerates.
func (c *checks) taints() {
	for _, r := range c.w.replicas {
		m := c.w.byName[r.Spec.NodeName]
		if m == nil || r.gone || !r.DeletionTimestamp.IsZero() || m.tainted.IsZero() {
			continue
		}
		if d := c.w.patience(r); d != forEver && c.w.now.Sub(m.tainted) > d+noticed {
			c.broken("%s is on %s %s after the taint and tolerates it for %s", r.Name, m.node.Name, c.w.now.Sub(m.tainted), d)
		}
	}
}
