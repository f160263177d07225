package macnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	peers, err := r.Sites.Peers(mac, orders, macs, func() ([]v1alpha1.MacAssignment, []v1alpha1.ModelReplica, error) { return r.others(ctx) })
	if err != nil {
		return false, err
	}
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
		for _, n := range peers[i] {
			want := agentapi.Grant{
				Server: n.Name, Client: mac.Name, ClientUID: string(mac.UID), Digest: a.Model.Digest, Source: a.Model.Source, TokenRef: a.TokenRef,
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
		a.Peers = fleet.FitPeers(a.Peers)
	}
	return any, failed
}

// others returns the assignments of all Macs, which determine the one that downloads for all.
func (r *Orders) others(ctx context.Context) ([]v1alpha1.MacAssignment, []v1alpha1.ModelReplica, error) {
	var replicas v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &replicas, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list replicas: %w", err)
	}
	var assigned v1alpha1.MacAssignmentList
	if err := r.Client.List(ctx, &assigned, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list MacAssignments: %w", err)
	}
	return assigned.Items, replicas.Items, nil
}

// site returns the Macs whose peers may differ because a Mac gained or lost weights, or can be
// reached for a copy, or no longer.
func (r *Orders) site(ctx context.Context, before, now *v1alpha1.MacNode) []reconcile.Request {
	change := fleet.SupplyChanged(before, now)
	if change == nil {
		return nil
	}
	macs, err := r.listMacs(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list Macs")
		return nil
	}
	var assigned v1alpha1.MacAssignmentList
	if err := r.Client.List(ctx, &assigned, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list MacAssignments")
		return nil
	}
	names := map[string]bool{}
	for _, name := range change.Concerned(macs, assigned.Items) {
		names[name] = true
	}
	return requests(names)
}
