package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
)

// outage is what was done to a Mac ("studio-1") or a gateway ("gateway-2"), and
// for how long its requests may feel it.
type outage struct {
	kind     kind
	who      string
	from, to time.Time // to is zero while it lasts
}

// overlaps says whether a request met it.
func (o outage) overlaps(from, to time.Time) bool {
	return o.from.Before(to) && (o.to.IsZero() || o.to.After(from))
}

// breaks says that a fault of a kind ends the requests that run there.
func (k kind) breaks() bool {
	switch k {
	case agentKilled, engineKilled, linkCut, clockOff, macLost, gatewayKilled:
		return true
	}
	return false
}

// request is what became of one.
type request struct {
	model   string
	stream  bool
	gateway string // the last that it was sent to
	mac     string // that answered; empty where none had begun to
	begun   time.Time
	ended   time.Time
	moved   int  // to another gateway, after its own was gone
	first   bool // the first byte of its stream came: from there on nobody tries again
	finish  string
	tokens  int
	err     error
}

// verdict of a request.
type verdict string

const (
	whole verdict = "whole"
	// cutTyped is a stream that ended with a terminal error after its first token,
	// because its Mac or engine was taken away.
	cutTyped verdict = "cut, told"
	// cutGateway is a stream whose gateway was killed: its connection broke, which
	// no client takes for an end.
	cutGateway verdict = "cut with its gateway"
	// failed requests could have been saved, or ended as nobody should.
	failed verdict = "failed"
)

// judge says what is to be thought of a request, given what was done.
func judge(r request, asked int, outages []outage) (verdict, error) {
	met := func(who string) bool {
		return slices.ContainsFunc(outages, func(o outage) bool {
			return o.kind.breaks() && (who == "" || o.who == who) && o.overlaps(r.begun, r.ended)
		})
	}
	var typed *openai.Error
	switch {
	case r.err == nil && r.finish == "length" && r.tokens == asked:
		return whole, nil
	case r.err == nil:
		return failed, fmt.Errorf("half an answer that looked whole: finish %q after %d of %d tokens", r.finish, r.tokens, asked)
	case !r.stream || !r.first:
		return failed, fmt.Errorf("nothing had been sent, another try would have saved it: %w", r.err)
	case errors.As(r.err, &typed):
		if typed.Code != agentapi.CodeEngineLost {
			return failed, fmt.Errorf("a stream ended with another error than %s: %w", agentapi.CodeEngineLost, r.err)
		}
		if !met(r.mac) {
			return failed, fmt.Errorf("a stream of %s was cut though nothing was done there: %w", r.mac, r.err)
		}
		return cutTyped, nil
	case met(r.gateway):
		return cutGateway, nil
	}
	return failed, fmt.Errorf("a stream broke off without a word, and its gateway lived: %w", r.err)
}

// tally counts requests by verdict.
type tally struct {
	count   map[verdict]int
	streams int
	moved   int
	longest time.Duration
	errs    []error
}

// mostTold bounds how many failures are told.
const mostTold = 10

func judgeAll(requests []request, asked func(request) int, outages []outage) tally {
	t := tally{count: map[verdict]int{}}
	for _, r := range requests {
		v, err := judge(r, asked(r), outages)
		t.count[v]++
		t.moved += r.moved
		t.longest = max(t.longest, r.ended.Sub(r.begun))
		if r.stream {
			t.streams++
		}
		if err != nil && len(t.errs) < mostTold {
			t.errs = append(t.errs, fmt.Errorf("%s of %s at %s, by %s over %s, %.1f s: %w", kindOf(r.stream), r.model, r.begun.UTC().Format("15:04:05.000"), r.mac, r.gateway,
				r.ended.Sub(r.begun).Seconds(), err))
		}
	}
	return t
}

func kindOf(stream bool) string {
	if stream {
		return "a stream"
	}
	return "a request"
}

func (t tally) err() error {
	if n := t.count[failed]; n > 0 {
		return fmt.Errorf("%d requests failed:\n%w", n, errors.Join(t.errs...))
	}
	if t.count[whole] == 0 {
		return errors.New("no request was answered")
	}
	return nil
}

// distrustWords are what a gateway logs when a Mac leaves its picks.
const distrustWords = "Connection to a Mac failed; preferring others for a while"

// distrusted finds in a gateway's log when a Mac left its picks, the first time
// after a moment.
func distrusted(log, mac string, after time.Time) (time.Time, bool) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, distrustWords) || !strings.Contains(line, "MacNode="+mac+" ") {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err == nil && !at.Before(after.Truncate(time.Millisecond)) {
			return at, true
		}
	}
	return time.Time{}, false
}
