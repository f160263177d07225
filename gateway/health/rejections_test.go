//go:build !race

package health

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	start    = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	replicas = []string{"a", "b", "c", "d"}
)

func TestAReplicaThatRejectsMoreThanOthersIsAvoided(t *testing.T) {
	var r Rejections
	now, rejected := start, 0
	until := func(limit int) int {
		for n := range limit {
			for _, uid := range replicas[1:] {
				r.Ended("t", uid, false, replicas, now)
			}
			if rejected++; r.Ended("t", "a", true, replicas, now) {
				return n + 1
			}
		}
		return 0
	}
	if n := until(100); n != comparedFirst {
		t.Errorf("avoided after %d rejections, want %d", n, comparedFirst)
	}
	for _, uid := range replicas {
		if r.Standing("t", uid, now.Add(ejectMin-1)).Ejected() != (uid == "a") || r.Standing("t", uid, now.Add(ejectMin)).Ejected() {
			t.Errorf("replica %s: avoided %t", uid, r.Standing("t", uid, now).Ejected())
		}
	}
	now = now.Add(ejectMin)
	if n := until(100); n != comparedAgain || !r.Standing("t", "a", now.Add(2*ejectMin-1)).Ejected() {
		t.Errorf("avoided again after %d rejections, want %d", n, comparedAgain)
	}
	proving := func() bool { return r.Standing("t", "a", now).Proving }
	if now = now.Add(2 * ejectMin); !proving() {
		t.Error("it is not proving when the time is over")
	}
	if r.Ended("t", "a", false, replicas, now); proving() {
		t.Error("an answer does not prove it")
	}
	r.Prune(now.Add(time.Hour))
	if r.size != 0 || r.Any("t") {
		t.Errorf("%d counts are remembered", r.size)
	}
}

// TestAttackRejectionsThatAClientCauses: a client whose requests are wrong makes no one avoid a
// replica that treats all alike; one that sends them to a replica of its choice, only itself.
func TestAttackRejectionsThatAClientCauses(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var r Rejections
	for _, share := range []float64{0.2, 0.5, 1} {
		client := fmt.Sprint(share)
		for range 4000 {
			uid := replicas[random.IntN(len(replicas))]
			if r.Ended(client, uid, random.Float64() < share, replicas, start) && share > 0.2 { // a fifth may come in a row, rarely
				t.Errorf("a client with a share of %g of wrong requests avoids a replica that treats all alike", share)
			}
		}
	}
	r.Ended("other", "a", true, replicas, start)
	for range 100 {
		r.Ended("liar", "b", false, replicas, start)
		r.Ended("liar", "a", true, replicas, start)
		for _, uid := range replicas {
			r.Ended("other", uid, false, replicas, start)
		}
	}
	if !r.Standing("liar", "a", start).Ejected() || r.Standing("other", "a", start).Ejected() || r.Standing("new", "a", start).Ejected() {
		t.Error("a client decides which replicas others avoid")
	}
	for i := range maxCounts + 10 {
		r.Ended(fmt.Sprint("client ", i), "a", true, replicas, start)
	}
	if r.size > maxCounts {
		t.Errorf("%d counts are remembered", r.size)
	}
}
