package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/api/logs"
)

func TestOnlyLogsAreRead(t *testing.T) {
	dir := t.TempDir()
	a := &Agent{Config: Config{StateDir: dir, LogTail: logs.NewTail(1 << 10)}}
	_, _ = a.LogTail.Write([]byte("one\ntwo\n"))
	folder := filepath.Join(dir, "logs")
	if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(dir, "identity.json"), []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(folder, "0123456789ab.log"), []byte("first\nsecond\nthird\n"), 0o600),
		os.WriteFile(filepath.Join(folder, "private.log"), []byte("secret"), 0o600),
		os.Symlink("../identity.json", filepath.Join(folder, "aaaaaaaaaaaa.log"))); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		n    int
		want string
	}{{n: 100, want: "one\ntwo\n"}, {n: 5, want: "two\n"}, {name: "0123456789ab", n: 100, want: "first\nsecond\nthird\n"},
		{name: "0123456789ab", n: 13, want: "second\nthird\n"}, {name: "0123456789ab", n: 12, want: "third\n"}} {
		if got, err := a.lastOfLog(tc.name, tc.n); err != nil || string(got) != tc.want {
			t.Errorf("%d bytes of %q: %q, %v; want %q", tc.n, tc.name, got, err, tc.want)
		}
	}
	for _, name := range []string{"private", "aaaaaaaaaaaa", "bbbbbbbbbbbb", "../identity.json", "..", "0123456789ab.log", "0123456789ab/.."} {
		if got, err := a.lastOfLog(name, 100); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	a.LogTail = nil
	if _, err := a.lastOfLog("", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
