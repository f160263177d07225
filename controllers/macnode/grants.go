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

// A grant is good for grantLife and replaced when half of that is over.
const (
	grantLife  = agentapi.MaxGrantLife
	renewGrant = grantLife / 2
)

// Granter signs what a Mac may read of another. Sign returns the grant that
// was there before while that is good for the same and for longer than least.
type Granter interface {
	Grant(ctx context.Context, want agentapi.Grant, before string, least time.Duration) (string, error)
}

// introduce names to a Mac, in each of its orders, the neighbours to copy from,
// and returns whether there are any. A neighbour whose grant cannot be signed is
// left out: the orders are valid without it, and those of other tenants are
// among them.
func (r *Orders) introduce(ctx context.Context, mac *v1alpha1.MacNode, orders []v1alpha1.Assignment, macs []v1alpha1.MacNode) (bool, error) {
	copies := func(a v1alpha1.Assignment) bool { return fleet.Copies(mac, &a) }
	if r.Grants == nil || !slices.ContainsFunc(orders, copies) {
		return false, nil
	}
	// Those of other Macs say who fetches what for all.
	var replicas v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &replicas, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list replicas: %w", err)
	}
	sites := fleet.NewSites(macs, replicas.Items)
	before := map[string]string{} // grants, by replica and neighbour
	for _, a := range mac.Spec.Assignments {
		for _, n := range a.Neighbours {
			before[a.ReplicaUID+"/"+n.Mac] = n.Grant
		}
	}
	now, any := r.Clock.Now(), false
	var failed error // the first one that another try may mend
	for i := range orders {
		a := &orders[i]
		for _, n := range sites.Neighbours(mac, a) {
			want := agentapi.Grant{
				Giver: n.Name, Asker: mac.Name, ClientUID: string(mac.UID), Digest: a.Model.Digest, Source: a.Model.Source,
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
			a.Neighbours = append(a.Neighbours, v1alpha1.Neighbour{Mac: n.Name, Address: *n.Status.Address, Grant: grant})
			any = true
		}
	}
	return any, failed
}

// siteChanged passes a Mac that others may copy from now, or no more.
func siteChanged() predicate.Predicate {
	facts := func(o client.Object) string { return fleet.SiteFacts(o.(*v1alpha1.MacNode)) }
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return facts(e.ObjectOld) != facts(e.ObjectNew) }}
}

// site are the Macs beside one, itself among them, that lack weights.
func (r *Orders) site(ctx context.Context, o client.Object) []reconcile.Request {
	site := o.GetLabels()[fleet.LabelSite]
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs, client.DisableReadYourWritesConsistency); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	out := []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	for i := range macs.Items {
		if m := &macs.Items[i]; m.Name != o.GetName() && m.Labels[fleet.LabelSite] == site && fleet.Lacks(m) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: m.Name}})
		}
	}
	return out
}
