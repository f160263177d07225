package macnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// A grant is valid for grantLife and replaced after half of it.
const (
	grantLife  = agentapi.MaxGrantLife
	renewGrant = grantLife / 2
)

// Granter signs the permission of a Mac to read weights from another. Sign returns the
// previous grant if it has the same content and is valid for longer than least.
type Granter interface {
	Grant(ctx context.Context, want agentapi.Grant, before string, least time.Duration) (string, error)
}

// introduce adds the peers to copy from to each of a Mac's assignments, and returns whether
// there are any. Grants of the previous assignments are kept while they are valid. A peer whose grant cannot be signed is left out: the assignments are valid
// without it, and include those of other tenants.
func (r *Orders) introduce(ctx context.Context, mac *v1alpha1.MacNode, orders, previous []v1alpha1.Assignment, macs []v1alpha1.MacNode) (bool, error) {
	copies := func(a v1alpha1.Assignment) bool { return fleet.Copies(mac, &a) }
	if r.Grants == nil || !slices.ContainsFunc(orders, copies) {
		return false, nil
	}
	// Assignments of other Macs determine which Mac downloads for all.
	var replicas v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &replicas, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list replicas: %w", err)
	}
	var assigned v1alpha1.MacAssignmentList
	if err := r.Client.List(ctx, &assigned, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list MacAssignments: %w", err)
	}
	sites := fleet.NewSites(macs, assigned.Items, replicas.Items)
	before := map[string]string{} // grants, by replica and peer
	for _, a := range previous {
		for _, n := range a.Peers {
			before[a.ReplicaUID+"/"+n.Mac] = n.Grant
		}
	}
	now, any := r.Clock.Now(), false
	var failed error // the first one that a retry may solve
	for i := range orders {
		a := &orders[i]
		for _, n := range sites.Peers(mac, a) {
			want := agentapi.Grant{
				Server: n.Name, Client: mac.Name, ClientUID: string(mac.UID), Digest: a.Model.Digest, Source: a.Model.Source,
				Issued: now.Unix(), Expires: now.Add(grantLife).Unix(),
			}
			grant, err := r.Grants.Grant(ctx, want, before[a.ReplicaUID+"/"+n.Name], renewGrant)
			if err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "Cannot grant a Mac the weights of another one", "peer", n.Name, "namespace", a.Namespace, "replica", a.Name)
				if failed == nil && !errors.Is(err, agentapi.ErrGrantTooLong) {
					failed = fmt.Errorf("grant %s weights of %s: %w", mac.Name, n.Name, err)
				}
				continue
			}
			a.Peers = append(a.Peers, v1alpha1.Peer{Mac: n.Name, Address: *n.Status.Address, Grant: grant})
			any = true
		}
	}
	return any, failed
}

// siteChanged passes a Mac that others can newly copy from, or no longer.
func siteChanged() predicate.Predicate {
	facts := func(o client.Object) string { return fleet.SiteFacts(o.(*v1alpha1.MacNode)) }
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return facts(e.ObjectOld) != facts(e.ObjectNew) }}
}

// site returns the Macs of the same site, including this one, that lack weights.
func (r *Orders) site(ctx context.Context, o client.Object) []reconcile.Request {
	site := o.GetLabels()[fleet.LabelSite]
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	var assigned v1alpha1.MacAssignmentList
	if err := r.Client.List(ctx, &assigned, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list MacAssignments")
		return nil
	}
	byMac := fleet.ByMac(assigned.Items)
	out := []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	for i := range macs.Items {
		if m := &macs.Items[i]; m.Name != o.GetName() && m.Labels[fleet.LabelSite] == site && fleet.Lacks(m, byMac[m.Name]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: m.Name}})
		}
	}
	return out
}
