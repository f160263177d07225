//go:build !race

package seed

import "testing"

func TestASeedIsFixedUnlessTheEnvironmentSelectsOne(t *testing.T) {
	for _, c := range []struct {
		value string
		want  uint64
	}{{"", 1}, {"7", 7}, {"0", 0}} {
		t.Setenv(Variable, c.value)
		if got := Of(t); got != c.want {
			t.Errorf("%s=%q gives %d, want %d", Variable, c.value, got, c.want)
		}
	}
	t.Setenv(Variable, "new")
	if got := Of(t); got < 1<<40 {
		t.Errorf("%s=new gives %d, want a time in nanoseconds", Variable, got)
	}
}
