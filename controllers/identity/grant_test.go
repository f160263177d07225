package identity

import (
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestAGrantOfAClockAheadIsReplaced: by the right clock it would be valid for a year.
func TestAGrantOfAClockAheadIsReplaced(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	clock := clocktesting.NewFakePassiveClock(now)
	issuer := &Issuer{Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).Build(), Namespace: "ns", Clock: clock}
	grant := func(at time.Time, before string) string {
		clock.SetTime(at)
		want := agentapi.Grant{Server: "a", Client: "b", ClientUID: "u", Digest: "d", Issued: at.Unix(), Expires: at.Add(agentapi.MaxGrantLife).Unix()}
		out, err := issuer.Grant(t.Context(), want, before, agentapi.MaxGrantLife/2)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	grant(now, "") // the authority is of this time
	ahead := grant(now.AddDate(1, 0, 0), "")
	right := grant(now, ahead)
	if right == ahead {
		t.Error("the grant of a clock that was a year ahead is kept")
	}
	if grant(now.Add(agentapi.MaxGrantLife/4), right) != right {
		t.Error("a grant that lasts is replaced")
	}
}
