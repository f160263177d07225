package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/selftest"
)

// selftestOn runs all of the self-test on a back end.
func selftestOn(t *testing.T, backend string) examination {
	t.Helper()
	var got examination
	out, stderr, code := runProgram(t, "", "selftest", "--backend", backend, "--json")
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("printed %q (%v), %q", out, err, stderr)
	}
	for _, r := range got.Checks {
		if !r.OK {
			t.Errorf("%s: %s", r.Name, line(r))
		}
	}
	if code != exitOK || !got.OK || got.Version != version || got.Facts["backend"] != backend || len(got.Checks) < 60 {
		t.Errorf("exit code %d, ok %v, version %q, facts %v, %d checks, %q", code, got.OK, got.Version, got.Facts, len(got.Checks), stderr)
	}
	return got
}

// found is the result of a check by name.
func (e examination) found(t *testing.T, name string) selftest.Result {
	t.Helper()
	for _, r := range e.Checks {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("there is no check %q", name)
	return selftest.Result{}
}

func TestSelftestPassesOnRef(t *testing.T) {
	got := selftestOn(t, "ref")
	for _, name := range []string{"speed: 1 token by 4-bit weights", "speed: 128 tokens by 4-bit weights", "memory: gauges"} {
		if r := got.found(t, name); r.Value <= 0 || r.Unit == "" {
			t.Errorf("%s has no figure: %+v", name, r)
		}
	}
}

func TestSelftestSaysWhatItDoesLineByLine(t *testing.T) {
	for _, c := range []struct {
		r    selftest.Result
		want string
	}{
		{r: selftest.Result{OK: true, Value: 1.25e-7, Unit: "relative error", Limit: 3e-6}, want: "ok     1.25e-07 relative error (limit 3e-06)"},
		{r: selftest.Result{OK: true, Value: 1048576, Unit: "bytes", Note: "and no more"}, want: "ok     1048576 bytes; and no more"},
		{r: selftest.Result{Value: 0.5, Unit: "relative error", Limit: 0.1, Error: "too much"}, want: "FAILED 0.5 relative error (limit 0.1); too much"},
	} {
		if got := line(c.r); got != c.want {
			t.Errorf("%+v prints %q, want %q", c.r, got, c.want)
		}
	}
	facts := renamed(map[string]string{"backend": "mlx", "version": "0.32.4", "device": "gpu"})
	if fmt.Sprint(facts) != "map[backend:mlx device: device:gpu framework version:0.32.4]" {
		t.Errorf("facts are named %v", facts)
	}
}

func TestAFailedSelftestHasTheExitCodeOfTheBackEnd(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"a check failed": {err: fmt.Errorf("%w: 1 of 2", selftest.ErrFailed), code: exitBackend},
		"interrupted":    {err: context.Canceled, code: exitFailure},
		"wrong usage":    {err: usagef("no"), code: exitUsage},
	} {
		if code := exitCode(backendFault(c.err)); code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, code, c.code)
		}
	}
	if err := backendFault(nil); err != nil {
		t.Errorf("no fault became %v", err)
	}
	for args, says := range map[string]string{"--backend abacus": "available: ", "--threads -1": "--threads", "now": "unexpected argument"} {
		if _, stderr, code := runProgram(t, "", append([]string{"selftest"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit code %d, %q", args, code, stderr)
		}
	}
}

func TestSelftestOfOneCheck(t *testing.T) {
	out, stderr, code := runProgram(t, "", "selftest", "--backend", "ref", "--only", "float32: Rope")
	if code != exitOK || !strings.Contains(out, "float32: Rope") || !strings.Contains(out, "all 1 checks") || strings.Contains(out, "RMSNorm") {
		t.Errorf("exit code %d, %q, %q", code, out, stderr)
	}
	out, stderr, code = runProgram(t, "", "selftest", "--backend", "ref", "--only", "no such check")
	if code != exitUsage || !strings.Contains(stderr, "matches no check") {
		t.Errorf("of no check: exit code %d, %q, %q", code, out, stderr)
	}
}
