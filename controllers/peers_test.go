package controllers_test

import (
	"crypto/x509"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/controllers/identity"
)

// TestPeersAreNamedWithTheirGrants in the order of a Mac that lacks weights, and
// no more once it has them.
func TestPeersAreNamedWithTheirGrants(t *testing.T) {
	w := newWorld(t)
	const hub = "hf://org/small"
	model := fleettest.Model(hub, "near", 98_000_000)
	here := []v1alpha1.StoredWeights{{Digest: model.Digest, Bytes: 98_000_000}}
	script := fleettest.Script{Capacity: 60 * gib, Sources: map[string]fleettest.Source{hub: {Model: &model}}}
	lacking := w.mac("asker", script)
	script.Weights = here
	w.mac("giver", script)
	for _, name := range []string{"asker", "giver"} {
		mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.change(mac, func() { mac.Labels[fleet.LabelSite] = "office" })
	}
	w.deploy("near", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model.Source = hub
		s.Placement.NodeSelector = map[string]string{"name": "asker"}
	})
	named := func() ([]v1alpha1.Peer, error) {
		a := w.assigned("asker")
		if len(a.Assignments) != 1 {
			return nil, fmt.Errorf("assigned: %+v", a.Assignments)
		}
		return a.Assignments[0].Peers, nil
	}
	w.eventually("the giver is named", func() error {
		near, err := named()
		if err != nil || len(near) != 1 || near[0].Mac != "giver" || near[0].Address.Port != 7443 {
			return fmt.Errorf("peers %+v, %v", near, err)
		}
		var ca corev1.Secret
		w.must(w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: identity.SecretCA}, &ca))
		roots, err := agentapi.RootCertificates(ca.Data[corev1.TLSCertKey])
		w.must(err)
		g, err := agentapi.ReadGrant(near[0].Grant, []*x509.Certificate{roots[0]}, w.clock.Now())
		var reader v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "asker"}, &reader))
		want := agentapi.Grant{Server: "giver", Client: "asker", ClientUID: string(reader.UID), Digest: model.Digest, Source: hub}
		if err != nil || !g.Same(want) {
			return fmt.Errorf("grant %+v, %v", g, err)
		}
		return nil
	})
	w.play(lacking, func(s *fleettest.Script) { s.Weights = here })
	w.eventually("no peers for a Mac that has the weights", func() error {
		if near, err := named(); err != nil || len(near) != 0 {
			return fmt.Errorf("peers %+v, %v", near, err)
		}
		return nil
	})
}
