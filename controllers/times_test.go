//go:build !race

package controllers_test

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestTimesThatNoProgramReadsAreRefused: a tenant writes spec.rollout.restartedAt, and a Mac the
// times of its status.
func TestTimesThatNoProgramReadsAreRefused(t *testing.T) {
	s := newSchema(t)
	mac := s.object("{apiVersion: metalfleet.dev/v1alpha1, kind: MacNode, metadata: {name: mac-of-NS}}")
	if err := s.c.Create(s.ctx, mac); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.c.Delete(context.Background(), mac) })
	for name, tc := range map[string]struct {
		value   string
		refused bool
	}{
		"a time":                   {value: "'2026-01-31T12:00:00Z'"},
		"a fraction and a zone":    {value: "'2026-01-31T12:00:00.123456+02:00'"},
		"small letters":            {value: "'2026-01-31t12:00:00z'", refused: true},
		"a zone of 99 hours":       {value: "'2026-01-31T12:00:00+99:99'", refused: true},
		"more text":                {value: "'2026-01-31T12:00:00Ztrash'", refused: true},
		"another decimal point":    {value: "'2026-01-31T12:00:00x5Z'", refused: true},
		"a list":                   {value: "[]", refused: true},
		"a year of five digits":    {value: "'9999-12-31T23:59:59-23:59'", refused: true},
		"a year before the first":  {value: "'0000-01-01T00:00:00+23:00'", refused: true},
		"a day that there is none": {value: "'2026-02-30T12:00:00Z'", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &schema{t: t, ctx: s.ctx, c: s.c, ns: s.ns}
			sentence := map[bool]string{true: "restartedAt"}[tc.refused]
			d := s.object("{apiVersion: metalfleet.dev/v1alpha1, kind: ModelDeployment, metadata: {generateName: time-, namespace: NS}, spec: {replicas: 0, model: {source: 'file://a'}, rollout: {restartedAt: " + tc.value + "}}}")
			s.want(s.c.Create(s.ctx, d), sentence)
			status := s.object("{conditions: [{type: Accepting, status: 'True', reason: A, message: m, lastTransitionTime: " + tc.value + "}], memory: {measuredAt: " + tc.value + "}}")
			next := mac.DeepCopy()
			next.Object["status"] = status.Object
			sentence = map[bool]string{true: "measuredAt"}[tc.refused]
			s.want(s.c.Status().Patch(s.ctx, next, client.MergeFrom(mac)), sentence)
		})
	}
}
