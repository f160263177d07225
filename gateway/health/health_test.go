//go:build !race

package health_test

import (
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/gateway/health"
)

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func retries(b *health.Budget, now time.Time) int {
	n := 0
	for n < 100_000 && b.Retry(now) {
		n++
	}
	return n
}

func TestRetriesAreAShareOfTheRequests(t *testing.T) {
	var b health.Budget
	if n := retries(&b, begin); n != 100 {
		t.Errorf("without a request: %d retries, want 100", n)
	}
	for range 1000 {
		b.Request(begin.Add(time.Second))
	}
	if n := retries(&b, begin.Add(5*time.Second)); n != 100 {
		t.Errorf("of 1,000 requests: %d more, want 100", n)
	}
	if n := retries(&b, begin.Add(9*time.Second)); n != 0 {
		t.Errorf("%d more in the same window", n)
	}
	if n := retries(&b, begin.Add(10*time.Second)); n != 100 { // the first hundred are forgotten
		t.Errorf("%d when the first are forgotten, want 100", n)
	}
	if n := retries(&b, begin.Add(time.Hour)); n != 100 {
		t.Errorf("%d after an hour, want 100", n)
	}
	if n := retries(&b, begin); n != 0 {
		t.Errorf("%d with a clock that was set back", n)
	}
	if n := retries(&b, begin.Add(10*time.Second)); n != 100 {
		t.Errorf("%d a window after the clock was set back, want 100", n)
	}
	if b.Idle(begin.Add(11*time.Second)) || !b.Idle(begin.Add(20*time.Second)) {
		t.Error("after the clock was set back, it is not idle for as long as the window")
	}
}

// ejectedOf returns which replicas are ejected.
func ejectedOf(o *health.Outliers, replicas []string, now time.Time) (out []bool) {
	for _, s := range o.Standings(replicas, now) {
		out = append(out, s.Ejected())
	}
	return out
}

func TestAReplicaThatFailsIsLeftAlone(t *testing.T) {
	var o health.Outliers
	all := []string{"a", "b", "c", "d"}
	end := func(replica string, failed bool, times int, now time.Time) (ejected bool) {
		for range times {
			ejected = o.Ended(replica, "t", failed, now)
		}
		return ejected
	}
	want := func(what string, now time.Time, want ...bool) {
		t.Helper()
		if got := ejectedOf(&o, all, now); !slices.Equal(got, want) {
			t.Errorf("%s: ejected %v, want %v", what, got, want)
		}
	}
	if end("a", true, 4, begin) || end("a", false, 1, begin) || end("a", true, 4, begin) {
		t.Error("four in a row, twice, are no five")
	}
	want("four in a row", begin, false, false, false, false)
	if !end("a", true, 1, begin) {
		t.Error("five in a row")
	}
	want("five in a row", begin, true, false, false, false)
	want("10 s later", begin.Add(10*time.Second), false, false, false, false)
	now := begin.Add(20 * time.Second)
	end("a", true, 5, now)
	want("the second time", now.Add(19*time.Second), true, false, false, false)
	want("20 s later", now.Add(20*time.Second), false, false, false, false)

	// Half of the last twenty, and never five in a row.
	now = begin.Add(time.Hour)
	for i := range 20 {
		if ejected := o.Ended("b", "t", i%2 == 0, now); ejected != (i == 19) {
			t.Errorf("b after %d requests: ejected is %v", i+1, ejected)
		}
	}
	want("every other one", now, false, true, false, false)
	end("c", true, 5, now.Add(time.Second))
	end("d", true, 5, now.Add(2*time.Second))
	want("three of four", now.Add(3*time.Second), false, false, true, true)
	if got := ejectedOf(&o, []string{"b"}, now); got[0] {
		t.Error("the only one is left alone")
	}
	o.Prune(now.Add(time.Hour))
	end("d", true, 5, now.Add(time.Hour))
	want("forgotten, and the first time again", now.Add(time.Hour+9*time.Second), false, false, false, true)
	want("for as long as the first time", now.Add(time.Hour+10*time.Second), false, false, false, false)
}

// TestAReplicaProvesItselfAfterAnEjection: one more failure ejects it again, for longer.
func TestAReplicaProvesItselfAfterAnEjection(t *testing.T) {
	var o health.Outliers
	fail := func(client string, times int, now time.Time) (ejected bool) {
		for range times {
			ejected = o.Ended("a", client, true, now)
		}
		return ejected
	}
	standing := func(now time.Time) health.Standing { return o.Standings([]string{"a", "b"}, now)[0] }
	fail("x", 3, begin)
	if !fail("y", 2, begin) {
		t.Fatal("it is not ejected")
	}
	if s := standing(begin); !s.Ejected() || s.Proving || !s.For("z") || s.ForSome() {
		t.Errorf("requests of two clients failed: %+v", s)
	}
	now := begin.Add(10 * time.Second)
	if s := standing(now); s.Ejected() || !s.Proving || !s.For("z") {
		t.Errorf("after the ejection: %+v", s)
	}
	if !fail("z", 1, now) || !standing(now.Add(19*time.Second)).Ejected() {
		t.Error("it failed again, and is not ejected for longer")
	}
	o.Ended("a", "x", false, now.Add(time.Second)) // it began before
	if now = now.Add(20 * time.Second); !standing(now).Proving {
		t.Error("an answer during the ejection proves it")
	}
	if o.Ended("a", "x", false, now); standing(now) != (health.Standing{}) || fail("x", 4, now) {
		t.Error("an answer does not prove it")
	}
}

// TestFailuresOfOneClientEjectForThatAlone until a request of another one fails too.
func TestFailuresOfOneClientEjectForThatAlone(t *testing.T) {
	var o health.Outliers
	standing := func(now time.Time) health.Standing { return o.Standings([]string{"a", "b"}, now)[0] }
	for range 5 {
		o.Ended("a", "x", true, begin)
	}
	if s := standing(begin); !s.Ejected() || !s.For("x") || s.For("y") || !s.ForSome() {
		t.Errorf("requests of one client failed: %+v", s)
	}
	now := begin.Add(10 * time.Second)
	if o.Ended("a", "y", false, now); !standing(now).Proving {
		t.Error("an answer to another client proves it")
	}
	if o.Ended("a", "y", true, now) {
		t.Error("one failure of another client ejects it")
	}
	o.Ended("a", "x", true, now)
	if o.Ended("a", "y", true, now); !standing(now).For("z") || standing(now).ForSome() {
		t.Error("requests of two clients failed, and the ejection concerns one")
	}
}
