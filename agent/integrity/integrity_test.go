//go:build !race

package integrity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckFindsWhatChanged(t *testing.T) {
	for name, test := range map[string]struct {
		change func(dir string) error
		want   string // in the error; empty: none
	}{
		"nothing":                  {change: func(string) error { return nil }, want: ""},
		"a file of no concern":     {change: write("notes.txt", "x"), want: ""},
		"the program":              {change: write("engine", "other"), want: "engine was changed"},
		"a library":                {change: write("lib/libmlx.so", "other"), want: "libmlx.so was changed"},
		"a library that was added": {change: write("libevil.dylib", "x"), want: "libevil.dylib was added"},
		"a program that is gone":   {change: func(dir string) error { return os.Remove(filepath.Join(dir, "engine")) }, want: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "lib"), 0o700), write("engine", "program")(dir), write("lib/libmlx.so", "library")(dir)); err != nil {
				t.Fatal(err)
			}
			f, err := Of(dir, "engine")
			if err != nil {
				t.Fatal(err)
			}
			if err := test.change(dir); err != nil {
				t.Fatal(err)
			}
			err = f.Check(dir)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func write(name, content string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600) }
}
