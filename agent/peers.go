package agent

import (
	"crypto/tls"

	"metalfleet.dev/metalfleet/agent/peer"
)

// newPeerClient copies weights from the peers that assignments name.
func (a *Agent) newPeerClient() *peer.Client {
	return peer.NewClient(peer.ClientConfig{
		Assigned: weightUse{a.journal}.peers, Blamed: a.metrics.blame, Pace: a.PeerPace,
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
