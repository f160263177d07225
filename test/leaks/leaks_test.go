package main

import (
	"context"
	"strings"
	"testing"
)

// TestNothingLeaks is the program with a small part of its amounts.
func TestNothingLeaks(t *testing.T) {
	var out strings.Builder
	if err := run(context.Background(), &out, amounts{passes: 40, cancelled: 12, settled: 20, stopped: 3}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, part := range []string{"passes", "faults", "requests"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("nothing is said of %s:\n%s", part, out.String())
		}
	}
	t.Log("\n" + out.String())
}
