//go:build !race

package health

import (
	"fmt"
	"testing"
	"time"
)

func TestAClientPaysItsDebtsWithTime(t *testing.T) {
	now := time.Unix(1000, 0)
	d := Debts{Most: 10, PerSecond: 2}
	d.Add("a", 8, now)
	for _, c := range []struct {
		name, client string
		n            float64
		after, want  time.Duration
	}{
		{name: "within the limit", client: "a", n: 2},
		{name: "over it", client: "a", n: 4, want: time.Second},
		{name: "a second later", client: "a", n: 4, after: time.Second},
		{name: "more than the limit", client: "a", n: 100, want: 4 * time.Second},
		{name: "more than the limit of one who owes nothing", client: "b", n: 100},
		{name: "the clock was set back", client: "a", n: 4, after: -time.Hour, want: time.Second},
	} {
		if got := d.Wait(c.client, c.n, now.Add(c.after)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	d.Add("a", 1e9, now)
	if got, want := d.Wait("a", 10, now), 40*time.Second; got != want {
		t.Errorf("one who owes without end waits %s, want %s", got, want)
	}
	for i := range 100 {
		d.Add(fmt.Sprint(i), 1, now)
	}
	if d.Add("b", 1, now.Add(time.Hour)); len(d.of) != 1 {
		t.Errorf("%d clients that paid are remembered", len(d.of)-1)
	}
}
