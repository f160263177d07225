//go:build mlx

package main

import (
	"strings"
	"testing"
)

func TestSelftestPassesOnMLX(t *testing.T) {
	got := selftestOn(t, "mlx")
	if got.Facts["framework version"] == "" || got.Facts["device: device"] == "" {
		t.Errorf("facts are %v, want the framework's version and its device", got.Facts)
	}
	if r := got.found(t, "threads"); r.Note != "other threads are refused" {
		t.Errorf("threads: %+v", r)
	}
	if r := got.found(t, "exceptions"); r.Value != 2 || !strings.Contains(r.Note, "broadcast") {
		t.Errorf("exceptions: %+v", r)
	}
}
