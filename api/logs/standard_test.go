package logs

import (
	"bytes"
	stdlog "log"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttackAFloodOfLinesOfALibrary: a peer that has net/http log a line for each of its frames
// fills no log, and the lines after it are seen.
func TestAttackAFloodOfLinesOfALibrary(t *testing.T) {
	defer stdlog.SetOutput(os.Stderr)
	defer stdlog.SetFlags(stdlog.Flags())
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		TakeStandard(slog.New(JSON.Handler(&out, slog.LevelInfo)))
		for range 100_000 {
			stdlog.Printf("unhandled frame \x1b[2J")
		}
		if n := strings.Count(out.String(), "\n"); n != burst {
			t.Errorf("%d lines, want %d", n, burst)
		}
		if strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), `"line":"unhandled frame`) {
			t.Errorf("%.300q", out.String())
		}
		out.Reset()
		time.Sleep(window)
		stdlog.Print("another")
		if got := out.String(); !strings.Contains(got, `"line":"another"`) || !strings.Contains(got, `"dropped":99980`) {
			t.Error(got)
		}
	})
}
