package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Replicas come and go, and their logs do not fill the disk.
func TestLogsOfReplicasThatAreGoneAreBounded(t *testing.T) {
	play(t, func(s *stage) {
		logs := filepath.Join(s.dir, "logs")
		write := func(uid, suffix string, bytes int64, age time.Duration) string {
			t.Helper()
			path := filepath.Join(logs, v1alpha1.EngineFile(uid, 1)+suffix)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, bytes); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
				t.Fatal(err)
			}
			return path
		}
		here := write("here", ".log", 10, 1000*time.Hour)
		aside := write("here", ".log.1", 10, 1000*time.Hour)
		notes := filepath.Join(logs, "notes.log")
		if err := os.WriteFile(notes, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		newest := write("gone-0", ".log", 10, time.Minute)
		for i := range 200 {
			write(fmt.Sprintf("gone-%d", i+1), ".log", 10, time.Hour+time.Duration(i)*time.Minute)
			write(fmt.Sprintf("gone-%d", i+1), ".log.1", 10, 1000*time.Hour)
		}
		s.follow(s.model("here", enginetest.Script{HoldBytes: gib}))
		s.after(2 * time.Minute)
		left, err := os.ReadDir(logs)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(left); n < maxOldLogs || n > 2*maxOldLogs+5 {
			t.Errorf("%d files are left", n)
		}
		large := write("large", ".log", 2*maxOldLogBytes, 0)
		s.after(2 * time.Minute)
		for path, want := range map[string]bool{here: true, aside: true, notes: true, newest: false, large: false} {
			if _, err := os.Stat(path); (err == nil) != want {
				t.Errorf("%s: %v, want it left: %t", path, err, want)
			}
		}
	})
}
