package agent

import (
	"crypto/tls"

	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// newPeerClient copies weights from the peers that assignments name.
func (a *Agent) newPeerClient() *peer.Client {
	return peer.NewClient(peer.ClientConfig{
		Assigned: a.peersFor, Blamed: a.metrics.blame, Pace: a.PeerPace,
		TLS: func(mac string) (*tls.Config, error) { return a.Links.Identity.WeightsTLS(mac) },
	})
}

// newPeerServer serves weights to peers that have a grant.
func (a *Agent) newPeerServer() *peer.Server {
	return peer.NewServer(peer.ServerConfig{
		Mac: a.Name, Roots: a.Links.Identity.Roots, Revoked: a.Links.Identity.Revoked, Weights: a.store, AtOnce: a.GivesAtOnce, Rate: a.GiveRate,
		Given: a.metrics.give, Log: a.Log.WithName("peer"),
	})
}

// peersFor returns the peers that the current assignments name for a record.
func (a *Agent) peersFor(r model.Record) []v1alpha1.Peer {
	o := a.journal.Snapshot().Desired
	if o == nil {
		return nil
	}
	for i := range o.Assignments {
		assigned := &o.Assignments[i]
		if assigned.Model.Digest == r.Digest && assigned.Model.Source == r.Source && len(assigned.Peers) > 0 {
			return assigned.Peers
		}
	}
	return nil
}
