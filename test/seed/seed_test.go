//go:build !race

package seed

import "testing"

func TestASeedIsFixedUnlessTheEnvironmentSelectsOne(t *testing.T) {
	for _, c := range []struct {
		value string
		want  uint64
	}{{want: 1}, {value: "7", want: 7}, {value: "0", want: 0}} {
		t.Setenv(variable, c.value)
		if got := Of(t); got != c.want {
			t.Errorf("%s=%q gives %d, want %d", variable, c.value, got, c.want)
		}
	}
	t.Setenv(variable, "new")
	if got := Of(t); got < 1<<40 {
		t.Errorf("%s=new gives %d, want a time in nanoseconds", variable, got)
	}
}
