package main

import (
	"bytes"
	stdlog "log"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/grpclog"

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

// TestTheLinesOfGRPCAreBounded: an engine that was taken over can have gRPC log one for each of its frames.
func TestTheLinesOfGRPCAreBounded(t *testing.T) {
	defer stdlog.SetOutput(os.Stderr)
	defer stdlog.SetFlags(stdlog.Flags())
	state := t.TempDir()
	var out bytes.Buffer
	err := run(t.Context(), []string{"run", "--name=m1", "--state=" + state, "--kubeconfig=" + state + "/none", "--engine=/bin/sh", "--listen=127.0.0.1:0"}, &out, &out)
	if err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Fatal(err)
	}
	out.Reset()
	for range 10_000 {
		grpclog.Component("transport").Errorf("Client received GoAway")
	}
	if n := strings.Count(out.String(), "Client received GoAway"); n < 1 || n > 1000 {
		t.Errorf("%d lines of 10000 are in the log", n)
	}
}
