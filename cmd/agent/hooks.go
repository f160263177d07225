package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/failpoint"
)

// Variables that tests of real processes set. Without testVariable the others
// are refused, so that none does anything by accident.
const (
	testVariable = "METALFLEET_TEST"
	// crashVariable names one of failpoint.All: the agent kills itself there.
	crashVariable = "METALFLEET_TEST_CRASH_AT"
	// timingVariable shortens delays, such as "stop=2s,term=1s".
	timingVariable = "METALFLEET_TEST_TIMING"
)

// testHooks does what the variables ask for, and says so as an error in the log.
func testHooks(c *agent.Config, getenv func(string) string) error {
	crash, timing := getenv(crashVariable), getenv(timingVariable)
	if crash == "" && timing == "" {
		return nil
	}
	if getenv(testVariable) != "1" {
		return fmt.Errorf("%s and %s are test hooks and need %s=1; unset them", crashVariable, timingVariable, testVariable)
	}
	if timing != "" {
		if err := shorten(&c.Timing, timing); err != nil {
			return err
		}
		c.Log.Error(nil, "This agent uses artificial delays for a test", "timing", timing)
	}
	if crash == "" {
		return nil
	}
	if points := failpoint.All(); !slices.Contains(points, crash) {
		return fmt.Errorf("%s: unknown point %q, want one of %s", crashVariable, crash, strings.Join(points, ", "))
	}
	c.Log.Error(nil, "THIS AGENT WILL KILL ITSELF; this is a test hook", "point", crash)
	die := dieAt(c.Log, crash)
	c.WrapPool = func(p *pool.Config) { p.Journal, p.Engines = failpoint.Wrap(p.Journal, p.Engines, die) }
	return nil
}

// dieAt ends this process as a power failure would, once it reaches a point.
func dieAt(log logr.Logger, at string) func(string) {
	return func(point string) {
		if point != at {
			return
		}
		log.Error(nil, "THIS AGENT IS KILLING ITSELF, as requested by a test hook", "point", point)
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err == nil {
			select {} // nothing more may happen
		}
	}
}

// shorten sets delays by their names.
func shorten(t *pool.Timing, words string) error {
	known := map[string]*time.Duration{
		"stop": &t.Stop, "term": &t.Term, "silence": &t.Silence, "stall": &t.LoadStall, "wait": &t.LoadWait, "hello": &t.Hello,
	}
	for word := range strings.SplitSeq(words, ",") {
		name, value, _ := strings.Cut(word, "=")
		d, err := time.ParseDuration(value)
		if known[name] == nil || err != nil || d <= 0 {
			return fmt.Errorf("%s: invalid delay %q; want NAME=DURATION with NAME one of %s", timingVariable, word,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		*known[name] = d
	}
	return nil
}
