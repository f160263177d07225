//go:build !race

package hubtoken

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/hubsecret"
)

// TestANamespaceRewritesTheSecretsOfMacsAtAPace: a tenant writes its Secret each 10 s, of which each Mac
// has a copy for each of 64 endpoints. Another tenant's credential arrives at the next pass all the same.
func TestANamespaceRewritesTheSecretsOfMacsAtAPace(t *testing.T) {
	const macs, copies, minutes = 100, 64, 10
	clock := clocktesting.NewFakePassiveClock(metav1.Now().Time)
	r := New(nil, &hubsecret.Reader{Clock: clock}, "metalfleet-system")
	var secrets [macs]corev1.Secret
	writes, written := 0, 0
	pass := func(greedy, modest []byte) {
		clock.SetTime(clock.Now().Add(hubsecret.AgainGood))
		for m := range secrets {
			w := wants{tokens: map[string][]byte{"modest": modest}, of: map[string]string{"modest": "modest"}, unknown: map[string]bool{}}
			for i := range copies {
				ref := fmt.Sprint("greedy", i)
				w.tokens[ref], w.of[ref] = greedy, "greedy"
			}
			if r.pace(w, secrets[m].Data); change(&secrets[m], w) {
				writes++
				for _, token := range secrets[m].Data {
					written += len(token)
				}
			}
		}
	}
	for i := range byte(minutes * 6) {
		pass(bytes.Repeat([]byte{i}, 6<<10), []byte("first"))
	}
	t.Logf("%d writes of %d bytes", writes, written)
	const most = writeBytes*(burst+int(minutes*time.Minute/interval)) + macs<<10
	if written > most {
		t.Errorf("%d writes of %d bytes in %d minutes, want at most %d bytes", writes, written, minutes, most)
	}
	pass(bytes.Repeat([]byte{'x'}, 6<<10), []byte("second"))
	for m := range secrets {
		if got := string(secrets[m].Data[v1alpha1.HubTokenKeyPrefix+"modest"]); got != "second" {
			t.Fatalf("the other tenant's credential is %q on Mac %d", got, m)
		}
	}
}
