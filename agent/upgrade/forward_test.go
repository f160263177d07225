package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// The supervisor of an upgraded agent knows the launcher alone.
func TestALauncherPassesOnWhatTheMacIsAboutToDo(t *testing.T) {
	dir, _ := mac(t, `cd "$UPGRADE_TEST_ENTER"
trap 'echo sleeps > heard' USR1; trap 'echo wakes > heard' CONT
printf ready >&3; exec 3>&-
until [ -e over ]; do sleep 0.05; done`, nil)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), enterVariable+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience.Of(t)); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: it did not happen", what)
			}
		}
	}
	until("the trial", func() bool { s, err := In(dir).Load(); return err == nil && s.Trial == nil && s.Current != nil })
	for _, of := range []struct {
		signal syscall.Signal
		want   string
	}{{syscall.SIGUSR1, "sleeps\n"}, {syscall.SIGCONT, "wakes\n"}} {
		if err := cmd.Process.Signal(of.signal); err != nil {
			t.Fatal(err)
		}
		until(of.signal.String(), func() bool { b, _ := os.ReadFile(filepath.Join(dir, "heard")); return string(b) == of.want })
	}
	if err := os.WriteFile(filepath.Join(dir, "over"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
