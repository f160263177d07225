package main

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/pool/failpoint"
)

func TestHooksOfTestsDoNothingByAccident(t *testing.T) {
	for name, test := range map[string]struct {
		env   map[string]string
		want  string // in the error; empty for none
		fault bool
		stop  time.Duration
	}{
		"nothing is set":                 {},
		"the test variable alone":        {env: map[string]string{testVariable: "1"}},
		"a point without it":             {env: map[string]string{crashVariable: failpoint.ExitSeen}, want: testVariable + "=1"},
		"delays without it":              {env: map[string]string{timingVariable: "stop=1s"}, want: testVariable + "=1"},
		"a point":                        {env: map[string]string{testVariable: "1", crashVariable: failpoint.ExitSeen}, fault: true},
		"a point that does not exist":    {env: map[string]string{testVariable: "1", crashVariable: "exit"}, want: failpoint.ExitSeen},
		"delays":                         {env: map[string]string{testVariable: "1", timingVariable: "term=1s,stop=2s"}, stop: 2 * time.Second},
		"a delay that does not exist":    {env: map[string]string{testVariable: "1", timingVariable: "rest=1s"}, want: "silence"},
		"a delay that is no time at all": {env: map[string]string{testVariable: "1", timingVariable: "stop=soon"}, want: "stop=soon"},
	} {
		t.Run(name, func(t *testing.T) {
			c := agent.Config{Log: logr.Discard()}
			err := testHooks(&c, func(key string) string { return test.env[key] })
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one about %q", err, test.want)
			}
			if (c.WrapPool != nil) != test.fault || c.Timing.Stop != test.stop {
				t.Errorf("fault %v, stop %v", c.WrapPool != nil, c.Timing.Stop)
			}
		})
	}
}
