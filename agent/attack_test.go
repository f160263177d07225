package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/patience"
)

// knockVariable makes the test program knock at the socket that it names, and
// print how that went.
const knockVariable = "METALFLEET_TEST_KNOCK"

// What a process finds at an engine's socket.
const (
	knockDenied   = "denied"   // by the bits of folder or socket
	knockHungUp   = "hung up"  // without a byte
	knockAnswered = "answered" // spoken to
)

// knock opens a socket and begins to speak HTTP/2, as gRPC does.
func knock(path string) (string, error) {
	c, err := net.Dial("unix", path)
	if errors.Is(err, fs.ErrPermission) {
		return knockDenied, nil
	}
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience.Most)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
		if err == nil {
			return knockAnswered, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "", err
		}
	}
	return knockHungUp, nil
}

// knockAs has a process of a user knock at a socket; nil: our own user.
func knockAs(t *testing.T, program, socket string, who *syscall.Credential) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{knockVariable + "=" + socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	var stderr bytes.Buffer // a test program built with -cover warns here that GOCOVERDIR is not set
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("knock at %s as %+v: %v: %s%s", socket, who, err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// readable is a copy of the test program that every user may run.
func readable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mf-knock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "knock")
	if err := errors.Join(os.WriteFile(program, b, 0o755), os.Chmod(program, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return program
}

// TestAttackAnEngineSocketOpenedByAnotherUser: three mechanisms keep other users
// of a Mac from an engine, and each suffices: the folder's mode, the socket's
// mode, and the engine's check of its client. As root a process of an
// unprivileged user tries to connect; otherwise the modes are checked, and
// TestAttackASocketOfAnotherUser of metal/wire covers the third.
func TestAttackAnEngineSocketOpenedByAnotherUser(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	m.boot()
	m.orders.next <- ordersOf(1, m.assignment())
	m.waitFor(v1alpha1.ConditionServing, "True/Serving")
	socket := m.agent.journal.Snapshot().Engines[0].Socket
	run := filepath.Dir(socket)
	wantBits(t, run, fs.ModeDir|0o700)
	wantBits(t, socket, fs.ModeSocket|0o600)
	if files, err := filepath.Glob(filepath.Join(run, "*.json")); err != nil || len(files) != 1 {
		t.Errorf("configurations %q, %v", files, err)
	} else {
		wantBits(t, files[0], 0o600)
	}
	program := readable(t)
	if got := knockAs(t, program, socket, nil); got != knockAnswered {
		t.Fatalf("its own user is %s", got)
	}
	if os.Geteuid() != 0 {
		t.Log("not root: no process of another user can be started, so the bits were read and not tried")
		return
	}
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, step := range []struct {
		opened string
		bits   fs.FileMode
		want   string
	}{
		{opened: filepath.Dir(m.state), bits: 0o755, want: knockDenied}, // of the test, around all of it
		{opened: m.state, bits: 0o755, want: knockDenied},
		{opened: run, bits: 0o755, want: knockDenied},
		{opened: socket, bits: 0o666, want: knockHungUp},
	} {
		if err := os.Chmod(step.opened, step.bits); err != nil {
			t.Fatal(err)
		}
		if got := knockAs(t, program, socket, nobody); got != step.want {
			t.Errorf("with %s of mode %s another user is %s, want %s", step.opened, step.bits, got, step.want)
		}
	}
	if got := knockAs(t, program, socket, nil); got != knockAnswered {
		t.Errorf("its own user is %s afterwards", got)
	}
}

// wantBits wants a file of ours with exactly this mode.
func wantBits(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode() != mode || !ok || int(st.Uid) != os.Geteuid() {
		t.Errorf("%s has mode %s and is user %d's, want %s and %d", path, info.Mode(), st.Uid, mode, os.Geteuid())
	}
}

// playKnock is the program of knockAs.
func playKnock(socket string) error {
	found, err := knock(socket)
	if err == nil {
		fmt.Println(found)
	}
	return err
}
