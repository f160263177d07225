package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// judge prints what became of every request, and says what should not have.
// dead is the Mac that was killed; it had one running stream.
func judge(out io.Writer, results []result, dead string, retries int) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	fmt.Fprintf(out, "\n   %-10s %-8s %-8s %7s %8s  %s\n", "request", "Mac", "kind", "tokens", "seconds", "end")
	count := map[string]int{}
	whole := ""
	for _, r := range results {
		fmt.Fprintf(out, "   %-10s %-8s %-8s %7d %8.2f  %s\n", r.Name, r.Mac, kindOf(r), max(r.Tokens, r.Pieces), r.Seconds, endOf(r))
		switch {
		case r.Kind == "running" && r.Mac == dead:
			count["broken"]++
			if !r.Typed || r.Error != "APIError" || r.Code != agentapi.CodeEngineLost {
				wrong("%s: the stream of the dead Mac ended with %s %s (%s), want APIError %s", r.Name, r.Error, r.Code, r.Message, agentapi.CodeEngineLost)
			}
			if r.Finish != "" || r.Pieces == 0 {
				wrong("%s: %d pieces and the finish reason %q: it should have been broken off", r.Name, r.Pieces, r.Finish)
			}
		case r.Error != "" || r.Finish == "" || r.Tokens == 0 || r.Text == "":
			wrong("%s: lost: %s %s; finish reason %q, %d tokens", r.Name, r.Error, r.Message, r.Finish, r.Tokens)
		case r.Mac == dead:
			wrong("%s: answered by %s, which is dead", r.Name, r.Mac)
		default:
			count[r.Kind]++
			if r.Kind == "running" {
				whole = r.Text
			}
		}
	}
	for kind, want := range map[string]int{"broken": 1, "running": 1, "waiting": 4, "after": 4} {
		if count[kind] != want {
			wrong("%d %s, want %d", count[kind], kind, want)
		}
	}
	// All ask the same and greedily: whoever answers, the words are the same.
	for _, r := range results {
		if !strings.HasPrefix(whole, r.Text) {
			wrong("%s: the text differs from that of the whole stream", r.Name)
		}
	}
	if retries < 1 {
		wrong("the gateway tried nothing again: no request waited at the dead Mac")
	}
	fmt.Fprintf(out, "\n   1 stream broken off with a typed error, %d of 1 completed; %d of 4 that waited and %d of 4 begun afterwards answered; %d tried again\n",
		count["running"], count["waiting"], count["after"], retries)
	return errors.Join(errs...)
}

func kindOf(r result) string {
	if r.Stream {
		return "stream"
	}
	return "whole"
}

func endOf(r result) string {
	if r.Error != "" {
		return r.Error + " " + r.Code
	}
	return r.Finish
}
