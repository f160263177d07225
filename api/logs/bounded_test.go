package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttackAFloodOfRefusals: a Mac or a client has the agent log a line for each of its
// requests. They fill no disk, and hide no other line.
func TestAttackAFloodOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := JSON
		log := slog.New(Bounded(f.Handler(&out, slog.LevelInfo)))
		peer, other := log.With("logger", "peer"), log.WithGroup("g").With("k", "v")
		for i := range 100_000 {
			peer.Info("refused", "address", i)
		}
		other.Info("refused")
		other.Info("another")
		if n := strings.Count(out.String(), "\n"); n != eachBurst+1 || !strings.Contains(out.String(), `"another"`) {
			t.Errorf("%d lines, want %d", n, eachBurst+1)
		}
		out.Reset()
		time.Sleep(window)
		peer.Info("refused")
		if got := out.String(); !strings.Contains(got, `"dropped":99901`) || strings.Count(got, "\n") != 1 {
			t.Error(got)
		}
		out.Reset()
		for i := range 100_000 { // a library that writes its input into its messages
			log.Info(fmt.Sprint("message ", i))
		}
		if n := strings.Count(out.String(), "\n"); n > mostMessages+eachBurst {
			t.Errorf("%d lines of messages that differ", n)
		}
	})
}
