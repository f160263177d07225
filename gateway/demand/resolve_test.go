package demand

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestASlowResolverLeavesTimeForTheReport: the known addresses are used meanwhile, and the
// next reports do not wait for it again.
func TestASlowResolverLeavesTimeForTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookups := 0
		p := &Publisher{Operator: "operator:8443", targets: []string{"10.0.0.1:8443"}, Lookup: func(ctx context.Context, _ string) ([]string, error) {
			lookups++
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			if err := p.resolve(ctx); err != nil || len(p.targets) != 1 {
				t.Fatalf("%v, targets %v", err, p.targets)
			}
			if end, _ := ctx.Deadline(); time.Until(end) < time.Second {
				t.Errorf("%s are left for the report", time.Until(end))
			}
			cancel()
		}
		if lookups != 1 {
			t.Errorf("%d lookups in a row", lookups)
		}
	})
}

// TestTheOperatorHasAFewAddresses: each gets a connection and a report per second.
func TestTheOperatorHasAFewAddresses(t *testing.T) {
	p := &Publisher{Operator: "operator:8443", Lookup: func(context.Context, string) (all []string, err error) {
		for i := range 1000 {
			all = append(all, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
		}
		return all, nil
	}}
	if err := p.resolve(t.Context()); err != nil || len(p.targets) != maxTargets {
		t.Errorf("%d addresses, %v", len(p.targets), err)
	}
}
