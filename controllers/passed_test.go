//go:build !race

package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// They reach every replica, also one that only keeps weights, without a rollout.
func TestReplicasHaveTheLabelsOfTheirDeployment(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.mac("mac-2", holding(60*gib))
	w.looked()
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Replicas, s.Prefetch.Macs = ptr.To[int32](1), 2
		s.ReplicaMetadata.Labels = map[string]v1alpha1.MetadataValue{"team": "a", "example.com/tier": "b"}
	})
	prefetched(w, "chat", 1, 2)
	revision := w.get("chat").Status.UpdateRevision
	have := func(what string, selector client.MatchingLabels, annotation string) {
		w.t.Helper()
		w.eventually(what, func() error {
			var list v1alpha1.ModelReplicaList
			if err := w.c.List(w.ctx, &list, client.InNamespace(w.ns), selector); err != nil || len(list.Items) != 2 {
				return fmt.Errorf("%d replicas have %v (%w)", len(list.Items), selector, err)
			}
			for i := range list.Items {
				if r := &list.Items[i]; r.Annotations["note"] != annotation || r.Labels[v1alpha1.LabelDeployment] != "chat" {
					return fmt.Errorf("%s has %v and %v", r.Name, r.Labels, r.Annotations)
				}
			}
			return nil
		})
	}
	have("new replicas have them", client.MatchingLabels{"team": "a", "example.com/tier": "b"}, "")
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) {
		s.ReplicaMetadata = v1alpha1.ReplicaMetadata{Labels: map[string]v1alpha1.MetadataValue{"team": "z"}, Annotations: map[string]v1alpha1.MetadataValue{"note": "of the team"}}
	})
	have("existing replicas have the new ones", client.MatchingLabels{"team": "z"}, "of the team")
	var list v1alpha1.ModelReplicaList
	if w.must(w.c.List(w.ctx, &list, client.InNamespace(w.ns), client.HasLabels{"example.com/tier"})); len(list.Items) > 0 {
		t.Errorf("%d replicas have a label that was removed", len(list.Items))
	}
	if d := prefetched(w, "chat", 1, 2); d.Status.UpdateRevision != revision {
		t.Errorf("labels made the revision %s of %s", d.Status.UpdateRevision, revision)
	}
}

func TestLabelsOfReplicasAreValidated(t *testing.T) {
	s := newSchema(t)
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "k%d: v, ", i)
		}
		return b.String()
	}
	for name, tc := range map[string]struct{ metadata, sentence string }{
		"both":                       {metadata: "{labels: {team: a, example.com/team: ''}, annotations: {note: 'any text, as long as it fits'}}"},
		"as many as there may be":    {metadata: "{labels: {" + many(16) + "}}"},
		"one more":                   {metadata: "{labels: {" + many(17) + "}}", sentence: "at most 16"},
		"one more annotation":        {metadata: "{annotations: {" + many(17) + "}}", sentence: "at most 16"},
		"a key of the operator":      {metadata: "{labels: {metalfleet.dev/deployment: other}}", sentence: "must have no key of metalfleet.dev"},
		"an order of the operator":   {metadata: "{annotations: {metalfleet.dev/evict: 'true'}}", sentence: "must have no key of metalfleet.dev"},
		"a key of a subdomain":       {metadata: "{labels: {x.metalfleet.dev/a: b}}", sentence: "must have no key of metalfleet.dev"},
		"a key that looks like it":   {metadata: "{labels: {notmetalfleet.dev/a: b}}"},
		"a key that is none":         {metadata: "{labels: {'a b': c}}", sentence: "a key of replicaMetadata.labels must be a name"},
		"a long key":                 {metadata: "{labels: {" + strings.Repeat("x", 64) + ": c}}", sentence: "a key of replicaMetadata.labels must be a name"},
		"a key that is empty":        {metadata: "{annotations: {'': c}}", sentence: "a key of replicaMetadata.annotations must be a name"},
		"a value that is no label":   {metadata: "{labels: {team: 'a b'}}", sentence: "a value of replicaMetadata.labels must have at most 63"},
		"a value that is long":       {metadata: "{labels: {team: " + strings.Repeat("x", 64) + "}}", sentence: "a value of replicaMetadata.labels must have at most 63"},
		"the longest annotation":     {metadata: "{annotations: {note: " + strings.Repeat("x", 256) + "}}"},
		"an annotation that is long": {metadata: "{annotations: {note: " + strings.Repeat("x", 257) + "}}", sentence: "may not be more than 256"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: d}\nspec: {model: {source: 'file://a'}, replicaMetadata: " + tc.metadata + "}")
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}
