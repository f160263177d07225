//go:build !race

package hubsecret

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestCredentialsTakeABoundedMemory: the source of one deployment in each of several namespaces
// names another endpoint again and again, and then nothing more is asked there.
func TestCredentialsTakeABoundedMemory(t *testing.T) {
	const namespaces, edits, most = 3, maxAnswers, 32 << 20
	secret := &corev1.Secret{Data: map[string][]byte{"AWS_ACCESS_KEY_ID": []byte("id"),
		"AWS_SECRET_ACCESS_KEY": []byte(strings.Repeat("k", 1900)), "AWS_SESSION_TOKEN": []byte(strings.Repeat("s", 4000))}}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := &Reader{Live: &one{secret: secret}, Clock: clock}
	read := func(namespace, source string) {
		t.Helper()
		c, refusal, err := r.Read(t.Context(), client.ObjectKey{Namespace: namespace, Name: "hub"}, source)
		if err != nil || refusal != nil || len(c.Token) < 5900 {
			t.Fatalf("%d bytes, %v, %v", len(c.Token), refusal, err)
		}
	}
	before := live()
	for i := range edits {
		for n := range namespaces {
			read(fmt.Sprint("evil-", n), fmt.Sprintf("s3://b/m?endpoint=https://%s%d.example", strings.Repeat("e", 450), i))
		}
		clock.SetTime(clock.Now().Add(spacing))
	}
	if n := live() - before; n > most {
		t.Errorf("%d MiB are kept, at most %d are allowed", n>>20, most>>20)
	}
	read("team", "s3://b/m")
	if len(r.namespaces["team"].all) != 1 || r.namespaces["team"].tokenBytes == 0 {
		t.Error("another namespace's credential finds no room")
	}
	clock.SetTime(clock.Now().Add(forgets + pruneEvery))
	read("team", "s3://b/m")
	if n := live() - before; n > 4<<20 {
		t.Errorf("%d MiB are kept of namespaces that ask nothing", n>>20)
	}
	runtime.KeepAlive(r)
}

// live returns how many bytes of the heap are in use.
func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
