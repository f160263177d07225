package main

import (
	"bytes"
	"testing"

	"metalfleet.dev/metalfleet/api/logs"
)

func TestALineThatRepeatsWithoutEndDoesNotFillTheLog(t *testing.T) {
	var out bytes.Buffer
	log, _ := newLogger(&out, false, logs.Text)
	for range 10_000 {
		log.WithName("peer").Info("Refused a Mac's request for weights", "address", "10.0.0.1:1")
	}
	if n := bytes.Count(out.Bytes(), []byte("\n")); n < 1 || n > 1000 {
		t.Errorf("%d lines of 10000 are in the log", n)
	}
}
