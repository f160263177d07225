package agent

import (
	"crypto/tls"

	"metalfleet.dev/metalfleet/agent/neighbour"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// newAsker copies weights from the Macs that orders name.
func (a *Agent) newAsker() *neighbour.Asker {
	return neighbour.NewAsker(neighbour.AskerConfig{
		Ordered: a.neighboursFor, Blamed: a.metrics.blame, Pace: a.NeighbourPace,
		TLS: func(mac string) (*tls.Config, error) { return a.Links.Identity.WeightsTLS(mac) },
	})
}

// newGiver gives weights to Macs with a grant.
func (a *Agent) newGiver() *neighbour.Giver {
	return neighbour.NewGiver(neighbour.GiverConfig{
		Mac: a.Name, Roots: a.Links.Identity.Roots, Revoked: a.Links.Identity.Revoked, Shelf: a.store, AtOnce: a.GivesAtOnce, Rate: a.GiveRate,
		Given: a.metrics.give, Log: a.Log.WithName("neighbour"),
	})
}

// neighboursFor are the Macs that the orders of now name for a record.
func (a *Agent) neighboursFor(r model.Record) []v1alpha1.Peer {
	o := a.journal.Snapshot().Orders
	if o == nil {
		return nil
	}
	for i := range o.Assignments {
		order := &o.Assignments[i]
		if order.Model.Digest == r.Digest && order.Model.Source == r.Source && len(order.Peers) > 0 {
			return order.Peers
		}
	}
	return nil
}
